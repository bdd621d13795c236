// SPDX-License-Identifier: Apache-2.0
// Gemm against its definition, written down once more over unpacked rows: bit for bit, on every
// instruction set, for every weight type, row count, tail and thread count.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/quantize.h"
#include "tests/kernels_cpu/random_matrix.h"
#include "tests/kernels_cpu/supported_targets.h"

namespace lynx::cpu {
namespace {

std::unique_ptr<CpuBackend> MakeBackend(Compute compute, Target target, int threads = 1) {
  auto backend = CpuBackend::Create({.compute = compute, .num_threads = threads, .target = target});
  EXPECT_NE(backend, nullptr);
  return backend;
}

// ---- the definition ----------------------------------------------------------------------------

float At(const std::vector<float>& v, size_t i) { return i < v.size() ? v[i] : 0.0f; }

float DotBf16(const std::vector<float>& x, const std::vector<float>& w) {
  const auto bf16 = [](float f) { return ToFloat(ToBf16(f)); };
  float sum = 0;
  for (size_t tile = 0; tile < x.size(); tile += 32) {
    float even = 0, odd = 0;
    for (size_t i = tile; i < tile + 32; i += 2) {
      even = std::fma(bf16(At(x, i)), bf16(At(w, i)), even);
      odd = std::fma(bf16(At(x, i + 1)), bf16(At(w, i + 1)), odd);
    }
    sum += even + odd;
  }
  return sum;
}

float DotF32(const std::vector<float>& x, const std::vector<float>& w) {
  float sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum = std::fma(x[i], w[i], sum);
  return sum;
}

struct CodeBlock {
  float scale = 0, min = 0;
  int codes[32];
};

// Block b of a row as the 8-bit kernels see it.
CodeBlock CodesOf(const WeightView& view, int64_t row, int64_t b) {
  const std::byte* block = view.data + row * view.row_bytes + b * WeightBlock(view.type).bytes;
  const auto half = [block](int at) {
    uint16_t bits;
    std::memcpy(&bits, block + at, 2);
    return HalfToFloat(bits);
  };
  CodeBlock out;
  switch (view.type) {
    case WeightType::kQ8_0:
      out.scale = half(0);
      for (int i = 0; i < 32; ++i) out.codes[i] = int8_t(block[2 + i]);
      return out;
    case WeightType::kQ4_0:
    case WeightType::kQ4_1: {
      const bool has_min = view.type == WeightType::kQ4_1;
      out.scale = half(0);
      if (has_min) out.min = half(2);
      for (int i = 0; i < 32; ++i) {
        const int byte = int(block[(has_min ? 4 : 2) + i % 16]);
        out.codes[i] = (i < 16 ? byte & 15 : byte >> 4) - (has_min ? 0 : 8);
      }
      return out;
    }
    default: {
      std::vector<float> values(view.k);
      DequantizeRow(view.type, view.data + row * view.row_bytes, view.k, values.data());
      uint16_t scale;
      int8_t codes[32];
      if (view.type == WeightType::kQ5_0) {
        WidenQ5_0(block, &scale, codes);
      } else if (view.type == WeightType::kIQ4_NL) {
        WidenIQ4_NL(block, &scale, codes);
      } else {
        QuantizeQ8_0(&values[b * 32], &scale, codes);
      }
      out.scale = HalfToFloat(scale);
      std::copy(codes, codes + 32, out.codes);
      return out;
    }
  }
}

float DotInt8(const std::vector<float>& x, const WeightView& view, int64_t row) {
  float sum = 0;
  for (int64_t b = 0; b < view.k / 32; ++b) {
    const CodeBlock w = CodesOf(view, row, b);
    float max = 0;
    for (int i = 0; i < 32; ++i) max = std::max(max, std::fabs(x[b * 32 + i]));
    const bool zero = max < std::ldexp(1.0f, -100);
    const float scale = zero ? 0.0f : max / 127.0f;
    int dot = 0, x_sum = 0;
    for (int i = 0; i < 32; ++i) {
      const int code = zero ? 0 : int(std::nearbyint(x[b * 32 + i] * (127.0f / max)));
      dot += code * w.codes[i];
      x_sum += code;
    }
    sum = std::fma(float(dot), w.scale * scale, sum);
    if (view.type == WeightType::kQ4_1) sum = std::fma(w.min, scale * float(x_sum), sum);
  }
  return sum;
}

bool IsFloat(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBf16;
}

std::vector<float> Expected(Compute compute, const Matrix& w, const std::vector<float>& x,
                            int rows) {
  ScopedFlushToZero flush;
  const WeightView& view = w.view();
  std::vector<float> y;
  for (int r = 0; r < rows; ++r) {
    const std::vector<float> row(x.begin() + r * view.k, x.begin() + (r + 1) * view.k);
    for (int64_t n = 0; n < view.n; ++n) {
      if (compute == Compute::kF32) {
        y.push_back(DotF32(row, w.Row(n)));
      } else if (IsFloat(view.type)) {
        y.push_back(DotBf16(row, w.Row(n)));
      } else {
        y.push_back(DotInt8(row, view, n));
      }
    }
  }
  return y;
}

std::vector<float> Multiply(CpuBackend& backend, const WeightView& view, const float* x, int rows) {
  const auto weight = backend.PackWeight(view);
  std::vector<float> y(rows * view.n, -1.0f);
  const GemmOutput out{.weight = weight.get(), .y = y.data(), .ldy = view.n};
  backend.Gemm(x, rows, view.k, {&out, 1});
  return y;
}

class GemmTest : public testing::TestWithParam<Compute> {};
INSTANTIATE_TEST_SUITE_P(, GemmTest, testing::Values(Compute::kFast, Compute::kF32),
                         [](const auto& info) {
                           return info.param == Compute::kFast ? "Fast" : "F32";
                         });

TEST_P(GemmTest, EqualsTheDefinitionForEveryTypeAndTarget) {
  const int row_counts[] = {1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 37};
  for (WeightType type : kAllTypes) {
    const int block = WeightBlock(type).elements;
    const int64_t k = IsFloat(type) ? 75 : block == 32 ? 96 : 512;
    const Matrix w(type, 85, k, 7);
    const std::vector<float> x = RandomRows(37, k, 8);
    const auto want = Bits(Expected(GetParam(), w, x, 37));
    for (Target target : SupportedTargets()) {
      auto backend = MakeBackend(GetParam(), target);
      for (int rows : row_counts) {
        const auto got = Bits(Multiply(*backend, w.view(), x.data(), rows));
        ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
            << "type " << int(type) << ", " << backend->target() << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(GemmTest, EveryTailOfNAndK) {
  for (Target target : SupportedTargets()) {
    auto backend = MakeBackend(GetParam(), target);
    for (int64_t k : {1, 2, 31, 32, 33, 63, 65, 511, 513, 1100}) {
      for (int64_t n : {1, 15, 16, 17, 31, 33, 64, 65}) {
        const Matrix w(WeightType::kBf16, n, k, uint32_t(n * 1000 + k));
        for (int rows : {3, 34}) {
          const std::vector<float> x = RandomRows(rows, k, 5);
          ASSERT_EQ(Bits(Multiply(*backend, w.view(), x.data(), rows)),
                    Bits(Expected(GetParam(), w, x, rows)))
              << n << " x " << k << ", " << rows << " rows, " << backend->target();
        }
      }
    }
  }
}

TEST_P(GemmTest, RowsDoNotDependOnTheirCompany) {
  constexpr int kRows = 530;  // more than a slab
  constexpr int64_t kInputs = 256;
  const std::vector<float> x = RandomRows(kRows, kInputs, 3);
  for (WeightType type : {WeightType::kBf16, WeightType::kQ8_0, WeightType::kQ4_0,
                          WeightType::kQ4_1, WeightType::kQ6_K}) {
    const Matrix w(type, 150, kInputs, 4);
    auto one = MakeBackend(GetParam(), Target::kAuto);
    const auto want = Bits(Multiply(*one, w.view(), x.data(), kRows));
    for (int threads : {1, 2, 3}) {
      auto backend = MakeBackend(GetParam(), Target::kAuto, threads);
      for (int chunk : {1, 2, 3, 5, 8, 13, 16, 31, 64, 512, 530}) {
        std::vector<uint32_t> got;
        const int limit = std::min(kRows, chunk * 5);
        for (int r = 0; r < limit; r += chunk) {
          const auto part = Bits(
              Multiply(*backend, w.view(), x.data() + r * kInputs, std::min(chunk, limit - r)));
          got.insert(got.end(), part.begin(), part.end());
        }
        ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
            << "type " << int(type) << ", " << threads << " threads, chunks of " << chunk;
      }
    }
  }
}

TEST_P(GemmTest, OutputsOfOneCallShareTheirInput) {
  constexpr int kRows = 9;
  constexpr int64_t kInputs = 256;
  const std::vector<float> x = RandomRows(kRows, kInputs, 11);
  const Matrix a(WeightType::kQ4_1, 70, kInputs, 1), b(WeightType::kF16, 17, kInputs, 2),
      c(WeightType::kQ6_K, 33, kInputs, 3);
  const std::vector<float> bias = RandomRows(1, 70, 12);
  for (Target target : SupportedTargets()) {
    for (int threads : {1, 2}) {
      auto backend = MakeBackend(GetParam(), target, threads);
      const auto wa = backend->PackWeight(a.view()), wb = backend->PackWeight(b.view()),
                 wc = backend->PackWeight(c.view());
      constexpr int64_t kStride = 80;
      std::vector<float> ya(kRows * kStride, 0.5f), yb(kRows * 17), yc(kRows * 33, 2.0f);
      const GemmOutput outputs[] = {
          {.weight = wa.get(),
           .bias = bias.data(),
           .y = ya.data(),
           .ldy = kStride,
           .accumulate = true},
          {.weight = wb.get(), .y = yb.data(), .ldy = 17},
          {.weight = wc.get(), .y = yc.data(), .ldy = 33, .accumulate = true}};
      backend->Gemm(x.data(), kRows, kInputs, outputs);

      const auto ea = Expected(GetParam(), a, x, kRows), ec = Expected(GetParam(), c, x, kRows);
      EXPECT_EQ(Bits(yb), Bits(Expected(GetParam(), b, x, kRows)));
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < 70; ++i) {
          ASSERT_EQ(ya[r * kStride + i], 0.5f + (ea[r * 70 + i] + bias[i]));
        }
        for (int i = 70; i < kStride; ++i) ASSERT_EQ(ya[r * kStride + i], 0.5f);
        for (int i = 0; i < 33; ++i) ASSERT_EQ(yc[r * 33 + i], 2.0f + ec[r * 33 + i]);
      }
    }
  }
}

TEST_P(GemmTest, HonoursRowOrder) {
  std::vector<int32_t> order(48);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const std::vector<float> x = RandomRows(2, 64, 1);
  for (WeightType type : {WeightType::kF32, WeightType::kQ4_1, WeightType::kQ5_1}) {
    const Matrix w(type, 48, 64, 2);
    auto backend = MakeBackend(GetParam(), Target::kAuto);
    const auto plain = Multiply(*backend, w.view(), x.data(), 2);
    const auto ordered = Multiply(*backend, w.ordered(order), x.data(), 2);
    for (int i = 0; i < 96; ++i) ASSERT_EQ(ordered[i], plain[i / 48 * 48 + order[i % 48]]);
  }
}

// Denormals count as zero, tiny and huge activations scale, zero blocks are exact zeros.
TEST_P(GemmTest, ExtremeActivationsAgreeOnAllTargets) {
  constexpr int kRows = 8;
  std::vector<float> x = RandomRows(kRows, 128, 21);
  const float factors[kRows] = {0.0f, 1e-42f, 1e-36f, 1e-30f, 1e-12f, 1e20f, 1e30f, -1.0f};
  for (int i = 0; i < kRows * 128; ++i) x[i] *= factors[i / 128];
  for (WeightType type :
       {WeightType::kBf16, WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1}) {
    const Matrix w(type, 40, 128, 22);
    const auto want = Bits(Expected(GetParam(), w, x, kRows));
    for (Target target : SupportedTargets()) {
      auto backend = MakeBackend(GetParam(), target);
      EXPECT_EQ(Bits(Multiply(*backend, w.view(), x.data(), kRows)), want)
          << "type " << int(type) << ", " << backend->target();
    }
  }
}

TEST_P(GemmTest, NonFiniteActivationsReachTheirRowOnly) {
  for (Target target : SupportedTargets()) {
    for (WeightType type : {WeightType::kBf16, WeightType::kQ4_1}) {
      std::vector<float> x = RandomRows(3, 64, 31);
      const Matrix w(type, 20, 64, 32);
      auto backend = MakeBackend(GetParam(), target);
      const auto clean = Multiply(*backend, w.view(), x.data(), 3);
      x[64 + 7] = std::nanf("");
      const auto y = Multiply(*backend, w.view(), x.data(), 3);
      for (int i = 0; i < 60; ++i) {
        if (i / 20 == 1) {
          EXPECT_TRUE(std::isnan(y[i]));
        } else {
          EXPECT_EQ(y[i], clean[i]);
        }
      }
    }
  }
}

// Against float64, with bounds from the formats: a BF16 value is off by at most 2^-9 of itself, an
// 8-bit code by half a scale; float32 sums by k roundings.
TEST_P(GemmTest, ErrorAgainstFloat64IsThatOfTheFormats) {
  constexpr int64_t kInputs = 512;
  const std::vector<float> x = RandomRows(4, kInputs, 41);
  for (WeightType type : kAllTypes) {
    const Matrix w(type, 32, kInputs, 42);
    auto backend = MakeBackend(GetParam(), Target::kAuto);
    const auto y = Multiply(*backend, w.view(), x.data(), 4);
    for (int i = 0; i < 4 * 32; ++i) {
      const std::vector<float> row = w.Row(i % 32);
      double exact = 0, magnitude = 0, code_error = 0;
      for (int64_t b = 0; b < kInputs; b += 32) {
        double x_max = 0, w_max = 0, x_sum = 0, w_sum = 0;
        for (int64_t j = b; j < b + 32; ++j) {
          const double xv = x[i / 32 * kInputs + j], wv = row[j];
          exact += xv * wv;
          magnitude += std::fabs(xv * wv);
          x_max = std::max(x_max, std::fabs(xv)), w_max = std::max(w_max, std::fabs(wv));
          x_sum += std::fabs(xv), w_sum += std::fabs(wv);
        }
        code_error += x_max / 254 * w_sum;
        const bool requantized = type == WeightType::kQ5_1 || WeightBlock(type).elements == 256;
        if (requantized) code_error += (w_max / 254 + w_max / 1024) * (x_sum + 32 * x_max / 254);
      }
      double bound = kInputs * std::ldexp(magnitude, -23);
      if (GetParam() == Compute::kFast) {
        bound += IsFloat(type) ? std::ldexp(magnitude, -8) * 1.01 : code_error;
      }
      ASSERT_NEAR(y[i], exact, bound) << "type " << int(type) << ", output " << i;
    }
  }
}

TEST(PackWeightTest, SaysWhatIsKeptInMemory) {
  auto fast = MakeBackend(Compute::kFast, Target::kAuto, 2);
  auto f32 = MakeBackend(Compute::kF32, Target::kAuto, 2);
  const struct {
    WeightType file, memory;
    size_t bytes;  // of 32 x 512
  } cases[] = {{WeightType::kF32, WeightType::kBf16, 32768},
               {WeightType::kF16, WeightType::kBf16, 32768},
               {WeightType::kBf16, WeightType::kBf16, 32768},
               {WeightType::kQ4_0, WeightType::kQ4_0, 9216},
               {WeightType::kQ4_1, WeightType::kQ4_1, 10240},
               {WeightType::kQ5_0, WeightType::kQ8_0, 17408},
               {WeightType::kQ5_1, WeightType::kQ8_0, 17408},
               {WeightType::kQ8_0, WeightType::kQ8_0, 17408},
               {WeightType::kQ4_K, WeightType::kQ8_0, 17408},
               {WeightType::kQ5_K, WeightType::kQ8_0, 17408},
               {WeightType::kQ6_K, WeightType::kQ8_0, 17408},
               {WeightType::kQ2_K, WeightType::kQ8_0, 17408},
               {WeightType::kQ3_K, WeightType::kQ8_0, 17408},
               {WeightType::kIQ4_NL, WeightType::kQ8_0, 17408},
               {WeightType::kIQ4_XS, WeightType::kQ8_0, 17408}};
  for (const auto& c : cases) {
    const Matrix w(c.file, 32, 512, 1);
    const auto packed = fast->PackWeight(w.view());
    EXPECT_EQ(packed->type(), c.memory);
    EXPECT_EQ(packed->bytes(), c.bytes);
    EXPECT_EQ(packed->n(), 32);
    EXPECT_EQ(packed->k(), 512);
    const auto raw = f32->PackWeight(w.view());
    EXPECT_EQ(raw->type(), c.file);
    EXPECT_EQ(raw->bytes(), 0u);
  }
}

TEST(PackWeightTest, OutputsPastTheEndAreZero) {
  auto backend = MakeBackend(Compute::kFast, Target::kAuto);
  for (WeightType type : kAllTypes) {
    const Matrix w(type, 1, 512, 1);
    const auto packed = backend->PackWeight(w.view());
    EXPECT_EQ(packed->n(), 1);
    EXPECT_EQ(packed->bytes() % 16, 0u);
  }
}

}  // namespace
}  // namespace lynx::cpu
