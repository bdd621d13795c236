// SPDX-License-Identifier: Apache-2.0
// Matrix products on the device: quantized weights have the CPU's bits, BF16 weights stay within
// what the format allows, and no row depends on its company.
#include "kernels/cuda/gemm.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/weight.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::Bits;
using cpu::Matrix;
using cpu::RandomRows;

class GemmTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped()) bf16_ = std::make_unique<Bf16Gemm>();
  }

  // A device weight whose memory the test owns.
  struct Packed {
    DeviceMatrix matrix;
    DeviceArray<std::byte> memory;
    DeviceWeight weight;
  };

  std::unique_ptr<Packed> Pack(const WeightView& view) {
    DeviceMatrix matrix = PackForDevice(pool_, view);
    DeviceArray<std::byte> memory(matrix.bytes);
    if (matrix.type == WeightType::kBf16) bf16_->Plan(matrix.n, matrix.k);
    DeviceWeight weight(matrix, memory.data());
    return std::unique_ptr<Packed>(
        new Packed{std::move(matrix), std::move(memory), std::move(weight)});
  }

  std::vector<float> Multiply(const Matrix& w, const float* x, int rows) {
    return Multiply(*Pack(w.view()), x, rows);
  }
  std::vector<float> Multiply(const Packed& w, const float* x, int rows) {
    const int64_t n = w.weight.n(), k = w.weight.k();
    DeviceArray<float> y(rows * n);
    const GemmOutput output{.weight = &w.weight, .y = y.data(), .ldy = n};
    Run(x, rows, k, {&output, 1});
    return y.Download();
  }

  void Run(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) {
    GemmLimits limits{.max_rows = rows, .max_n = 0, .max_k = k};
    for (const GemmOutput& out : outputs) limits.max_n = std::max(limits.max_n, out.weight->n());
    DeviceArray<float> device_x(std::vector<float>(x, x + rows * k));
    DeviceArray<std::byte> scratch(GemmScratchBytes(limits));
    Gemm(stream(), *bf16_, device_x.data(), rows, k, outputs, scratch.data());
    Sync();
  }

  std::vector<float> OnCpu(const Matrix& w, const float* x, int rows) {
    const auto weight = cpu_->PackWeight(w.view());
    std::vector<float> y(rows * w.view().n);
    const GemmOutput output{.weight = weight.get(), .y = y.data(), .ldy = w.view().n};
    cpu_->Gemm(x, rows, w.view().k, {&output, 1});
    return y;
  }

  cpu::ThreadPool pool_{1};
  std::unique_ptr<cpu::CpuBackend> cpu_ = cpu::CpuBackend::Create({});
  std::unique_ptr<Bf16Gemm> bf16_;  // cuBLASLt needs a device
};

constexpr WeightType kQuantized[] = {WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1};

TEST_F(GemmTest, QuantizedWeightsHaveTheCpusBits) {
  constexpr int kMaxRows = 70;
  for (WeightType type : kQuantized) {
    for (int64_t k : {32, 96, 160, 1056}) {  // 1056: more than a pass, an odd number of blocks
      const Matrix w(type, 35, k, 7);
      const auto packed = Pack(w.view());
      const std::vector<float> x = RandomRows(kMaxRows, k, 8);
      const auto want = Bits(OnCpu(w, x.data(), kMaxRows));
      for (int rows : {1, 2, 7, 8, 9, 16, 17, 25, 64, 65, 70}) {
        if (k == 1056 && rows > 25) continue;
        const auto got = Bits(Multiply(*packed, x.data(), rows));
        ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
            << "type " << int(type) << ", k " << k << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(GemmTest, EveryTailOfN) {
  for (WeightType type : kQuantized) {
    for (int64_t n : {1, 15, 16, 17, 31, 127, 129, 150}) {
      const Matrix w(type, n, 64, uint32_t(n));
      const std::vector<float> x = RandomRows(18, 64, 5);
      for (int rows : {3, 11, 18}) {
        ASSERT_EQ(Bits(Multiply(w, x.data(), rows)), Bits(OnCpu(w, x.data(), rows)))
            << "type " << int(type) << ", n " << n << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(GemmTest, OtherBlockFormatsBecomeQ8_0) {
  for (WeightType type : cpu::kAllTypes) {
    if (WeightBlock(type).elements == 1) continue;
    const Matrix w(type, 20, 256, 3);
    const std::vector<float> x = RandomRows(3, 256, 4);
    ASSERT_EQ(Bits(Multiply(w, x.data(), 3)), Bits(OnCpu(w, x.data(), 3))) << int(type);
  }
}

// Denormals count as zero, tiny and huge activations scale, zero blocks are exact zeros, and a
// number that is none reaches its row only.
TEST_F(GemmTest, ExtremeActivations) {
  constexpr int kRows = 18;
  constexpr int64_t kInputs = 128;
  std::vector<float> x = RandomRows(kRows, kInputs, 21);
  const float factors[] = {0.0f, 1e-42f, 1e-36f, 1e-30f, 1e-12f, 1e20f, 1e30f, -1.0f, 1.0f};
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factors[i / kInputs % std::size(factors)];
  for (WeightType type : kQuantized) {
    const Matrix w(type, 40, kInputs, 22);
    for (int rows : {9, kRows}) {
      ASSERT_EQ(Bits(Multiply(w, x.data(), rows)), Bits(OnCpu(w, x.data(), rows))) << int(type);
    }
    std::vector<float> broken = x;
    broken[kInputs + 7] = std::nanf("");
    const std::vector<float> clean = Multiply(w, x.data(), 3), y = Multiply(w, broken.data(), 3);
    for (int i = 0; i < 120; ++i) {
      if (i / 40 == 1) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else {
        ASSERT_EQ(y[i], clean[i]);
      }
    }
  }
}

TEST_F(GemmTest, OutputsOfOneCallShareTheirInput) {
  constexpr int64_t kInputs = 256, kStride = 80;
  const Matrix a(WeightType::kQ4_1, 70, kInputs, 1), b(WeightType::kF16, 17, kInputs, 2),
      c(WeightType::kQ6_K, 33, kInputs, 3);
  const auto wa = Pack(a.view()), wb = Pack(b.view()), wc = Pack(c.view());
  const std::vector<float> bias = RandomRows(1, 70, 12);
  for (int rows : {5, 20}) {
    const std::vector<float> x = RandomRows(rows, kInputs, 11);
    DeviceArray<float> device_bias(bias), ya(std::vector<float>(rows * kStride, 0.5f)),
        yb(std::vector<float>(rows * 17, 3.0f)), yc(std::vector<float>(rows * 33, 2.0f));
    const GemmOutput outputs[] = {
        {.weight = &wa->weight,
         .bias = device_bias.data(),
         .y = ya.data(),
         .ldy = kStride,
         .accumulate = true},
        {.weight = &wb->weight, .bias = device_bias.data(), .y = yb.data(), .ldy = 17},
        {.weight = &wc->weight, .y = yc.data(), .ldy = 33, .accumulate = true}};
    Run(x.data(), rows, kInputs, outputs);

    const std::vector<float> ea = OnCpu(a, x.data(), rows), ec = OnCpu(c, x.data(), rows),
                             eb = Multiply(*wb, x.data(), rows), got_a = ya.Download(),
                             got_b = yb.Download(), got_c = yc.Download();
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < kStride; ++i) {
        const float want = i < 70 ? 0.5f + (ea[r * 70 + i] + bias[i]) : 0.5f;
        ASSERT_EQ(got_a[r * kStride + i], want);
      }
      for (int i = 0; i < 17; ++i) ASSERT_EQ(got_b[r * 17 + i], eb[r * 17 + i] + bias[i]);
      for (int i = 0; i < 33; ++i) ASSERT_EQ(got_c[r * 33 + i], 2.0f + ec[r * 33 + i]);
    }
  }
}

// One launch takes several outputs of a type, but not all of these.
TEST_F(GemmTest, ManyOutputsOfOneType) {
  constexpr int64_t kInputs = 160;
  for (WeightType type : kQuantized) {
    std::vector<Matrix> matrices;
    for (int64_t n : {70, 17, 129, 1, 16, 33}) {
      matrices.emplace_back(type, n, kInputs, static_cast<uint32_t>(n));
    }
    for (int rows : {3, 12, 20}) {
      const std::vector<float> x = RandomRows(rows, kInputs, 14);
      std::vector<std::unique_ptr<Packed>> packed;
      std::vector<DeviceArray<float>> ys;
      std::vector<GemmOutput> outputs;
      for (const Matrix& w : matrices) {
        const int64_t n = w.view().n;
        packed.push_back(Pack(w.view()));
        ys.emplace_back(static_cast<size_t>(rows * n));
        outputs.push_back({.weight = &packed.back()->weight, .y = ys.back().data(), .ldy = n});
      }
      Run(x.data(), rows, kInputs, outputs);
      for (size_t i = 0; i < matrices.size(); ++i) {
        ASSERT_EQ(Bits(ys[i].Download()), Bits(OnCpu(matrices[i], x.data(), rows)))
            << "type " << int(type) << ", output " << i << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(GemmTest, HonoursRowOrder) {
  std::vector<int32_t> order(48);
  for (int i = 0; i < 48; ++i) order[i] = (i * 7 + 3) % 48;
  const std::vector<float> x = RandomRows(2, 64, 1);
  for (WeightType type : {WeightType::kF32, WeightType::kQ4_1}) {
    const Matrix w(type, 48, 64, 2);
    const auto plain = Multiply(w, x.data(), 2);
    const auto ordered = Multiply(*Pack(w.ordered(order)), x.data(), 2);
    for (int i = 0; i < 96; ++i) ASSERT_EQ(ordered[i], plain[i / 48 * 48 + order[i % 48]]);
  }
}

// Products of BF16 are exact in float32. Each of the k additions loses at most a unit in the last
// place but one of a partial sum, which no sum of magnitudes exceeds (tensor cores cut off where
// IEEE rounds, with one or two bits in reserve).
TEST_F(GemmTest, Bf16WeightsStayWithinTheFormatsBound) {
  for (WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBf16}) {
    for (int64_t k : {1, 31, 33, 75}) {
      for (int64_t n : {1, 17, 40}) {
        constexpr int kRows = 3;
        const Matrix w(type, n, k, uint32_t(k));
        const std::vector<float> x = RandomRows(kRows, k, 6);
        const std::vector<float> y = Multiply(w, x.data(), kRows);
        for (int64_t j = 0; j < n; ++j) {
          const std::vector<float> row = w.Row(j);
          for (int r = 0; r < kRows; ++r) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < k; ++i) {
              const double product =
                  double{ToFloat(ToBf16(x[r * k + i]))} * double{ToFloat(ToBf16(row[i]))};
              sum += product;
              magnitude += std::fabs(product);
            }
            ASSERT_NEAR(y[r * n + j], sum, static_cast<double>(k) * 0x1p-22 * magnitude)
                << n << " x " << k << ", type " << int(type);
          }
        }
      }
    }
  }
}

TEST_F(GemmTest, RowsDoNotDependOnTheirCompany) {
  constexpr int64_t kInputs = 64, kOutputs = 21;
  for (WeightType type : {WeightType::kBf16, WeightType::kQ8_0, WeightType::kQ4_1}) {
    const int rows = type == WeightType::kBf16 ? 64 * 9 + 5 : 130;  // more than a slab
    const std::vector<float> x = RandomRows(rows, kInputs, 3);
    const Matrix w(type, kOutputs, kInputs, 4);
    const auto packed = Pack(w.view());
    const auto want = Bits(Multiply(*packed, x.data(), rows));
    for (int few = 1; few <= 64; ++few) {
      const auto got = Bits(Multiply(*packed, x.data(), few));
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
          << "type " << int(type) << ", " << few << " rows";
    }
    for (int chunk : {5, 31, 64, 65}) {
      std::vector<uint32_t> got;
      for (int r = 0; r < 130; r += chunk) {
        const auto part = Bits(Multiply(*packed, x.data() + r * kInputs, std::min(chunk, 130 - r)));
        got.insert(got.end(), part.begin(), part.end());
      }
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
          << "type " << int(type) << ", chunks of " << chunk;
    }
  }
}

}  // namespace
}  // namespace lynx::cuda
