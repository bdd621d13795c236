// SPDX-License-Identifier: Apache-2.0
// The product on AMX tiles against the scalar kernels, bit for bit: over emulated instructions
// everywhere, over the processor's own where it has them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/amx_probe.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/tile_config.h"
#include "tests/kernels_cpu/emulated_tiles.h"
#include "tests/kernels_cpu/guarded_array.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_tiles-inl.h"

constexpr Bf16Kernels kEmulated = MakeTileKernels<EmulatedTiles>();

class TilesTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!emulated() && !Supports(Target::kAmx)) GTEST_SKIP() << "this machine has no AMX";
  }
  static bool emulated() { return GetParam(); }
  static const Bf16Kernels& tiles() { return emulated() ? kEmulated : kBf16Amx; }
};
INSTANTIATE_TEST_SUITE_P(, TilesTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Emulated" : "Amx"; });

// ---- one step ----------------------------------------------------------------------------------

// A step whose arrays all end at an inaccessible page.
struct GuardedStep {
  GuardedStep(int rows, int panels, int blocks)
      : panel_bytes(size_t(blocks) * kTileBytes),
        weights(panels * panel_bytes),
        x(size_t(rows) * blocks * kBlockInputs),
        rounded(size_t(rows) * blocks * kTileRowBytes),
        acc(size_t(rows) * panels * kPanelOutputs) {
    std::mt19937 rng(rows * 100 + panels * 10 + blocks);
    std::normal_distribution<float> normal(0, 1);
    for (size_t i = 0; i < panels * panel_bytes; i += sizeof(Bf16)) {
      const Bf16 value = ToBf16(normal(rng));
      std::memcpy(weights.data() + i, &value, sizeof(value));
    }
    std::generate_n(x.data(), size_t(rows) * blocks * kBlockInputs, [&] { return normal(rng); });
    step = {.rows = rows,
            .panels = panels,
            .blocks = blocks,
            .weights = weights.data(),
            .weight_stride = panel_bytes,
            .tile_rows = &tile_rows,
            .acc = acc.data()};
  }

  std::vector<uint32_t> Run(const Bf16Kernels& kernels, float* rounded_rows) {
    kernels.round_rows({.x = x.data(),
                        .rows = step.rows,
                        .k = step.blocks * kBlockInputs,
                        .block_begin = 0,
                        .block_end = step.blocks},
                       rounded_rows);
    step.x = rounded_rows;
    kernels.multiply(step);
    return Bits({acc.data(), acc.data() + size_t(step.rows) * step.panels * kPanelOutputs});
  }

  size_t panel_bytes;
  GuardedArray<std::byte> weights;
  GuardedArray<float> x;
  GuardedArray<std::byte> rounded;  // BF16
  GuardedArray<float> acc;
  int tile_rows = 0;
  GemmStep step;
};

TEST_P(TilesTest, AStepOfAnyShapeReadsAndWritesItsArraysOnly) {
  ScopedFlushToZero flush_to_zero;
  for (int rows = 1; rows <= tiles().max_rows; ++rows) {
    for (int panels : {1, 2, 3, 4}) {
      for (int blocks : {1, 4}) {
        GuardedStep step(rows, panels, blocks);
        std::vector<float> floats(size_t(rows) * blocks * kBlockInputs);
        const auto want = step.Run(kGemmScalar.bf16, floats.data());
        for (int prefetch_blocks : {0, 2, 4}) {
          step.step.prefetch_blocks = prefetch_blocks;
          const auto have = step.Run(tiles(), reinterpret_cast<float*>(step.rounded.data()));
          ASSERT_EQ(have, want) << rows << " rows, " << panels << " panels, " << blocks;
          ASSERT_EQ(step.tile_rows, rows);
        }
        tiles().release();
      }
    }
  }
}

// ---- whole products ----------------------------------------------------------------------------

GemmKernels WithBf16(const Bf16Kernels& bf16) {
  GemmKernels kernels = kGemmScalar;
  kernels.bf16 = bf16;
  return kernels;
}

std::vector<uint32_t> Product(const Bf16Kernels& bf16, const WeightView& view, const float* x,
                              int rows, int threads = 1) {
  ThreadPool pool(threads);
  GemmScratch scratch;
  const auto weight = PackForFast(pool, view);
  std::vector<float> y(rows * view.n, -1.0f);
  const GemmOutput out{.weight = weight.get(), .y = y.data(), .ldy = view.n};
  RunGemm(pool, WithBf16(bf16), {.x = x, .rows = rows, .k = view.k, .outputs = {&out, 1}}, scratch);
  pool.Parallel([&](int thread) {
    EXPECT_FALSE(EmulatedTiles::in_use()) << "thread " << thread;
    EXPECT_EQ(scratch.threads[thread].tile_rows, 0);
  });
  return Bits(y);
}

// The first rows of `all`.
bool BeginsWith(const std::vector<uint32_t>& all, const std::vector<uint32_t>& rows) {
  return std::equal(rows.begin(), rows.end(), all.begin());
}

TEST_P(TilesTest, AnyNumberOfRows) {
  const Matrix w(WeightType::kBf16, 50, 75, 1);
  const std::vector<float> x = RandomRows(64, 75, 2);
  const auto want = Product(kGemmScalar.bf16, w.view(), x.data(), 64);
  for (int rows = 1; rows <= 64; ++rows) {
    ASSERT_TRUE(BeginsWith(want, Product(tiles(), w.view(), x.data(), rows))) << rows;
  }
}

TEST_P(TilesTest, EveryTailOfNAndK) {
  for (int64_t k : {1, 2, 31, 32, 33, 65, 513}) {
    for (int64_t n : {1, 15, 16, 17, 33, 64, 65}) {
      const Matrix w(WeightType::kBf16, n, k, uint32_t(n * 1000 + k));
      const std::vector<float> x = RandomRows(19, k, 5);
      ASSERT_EQ(Product(tiles(), w.view(), x.data(), 19),
                Product(kGemmScalar.bf16, w.view(), x.data(), 19))
          << n << " x " << k;
    }
  }
}

TEST_P(TilesTest, RowsDoNotDependOnChunksAndThreads) {
  constexpr int kRows = 530, kInputs = 96;  // more than a slab
  const Matrix w(WeightType::kBf16, 70, kInputs, 4);
  const std::vector<float> x = RandomRows(kRows, kInputs, 3);
  const auto want = Product(kGemmScalar.bf16, w.view(), x.data(), kRows);
  for (int threads : {1, 2, 3}) {
    for (int chunk : {1, 5, 16, 17, 31, 48, 64, 512, 530}) {
      std::vector<uint32_t> have;
      const int limit = std::min(kRows, chunk * 3);
      for (int r = 0; r < limit; r += chunk) {
        const auto part =
            Product(tiles(), w.view(), x.data() + r * kInputs, std::min(chunk, limit - r), threads);
        have.insert(have.end(), part.begin(), part.end());
      }
      ASSERT_TRUE(BeginsWith(want, have)) << threads << " threads, chunks of " << chunk;
    }
  }
}

TEST_P(TilesTest, LongRowsAreCutIntoLowSlabs) {
  constexpr int kRows = 140, kInputs = 5000;  // slabs of 64
  const Matrix w(WeightType::kBf16, 20, kInputs, 6);
  const std::vector<float> x = RandomRows(kRows, kInputs, 7);
  EXPECT_EQ(Product(tiles(), w.view(), x.data(), kRows, 2),
            Product(kGemmScalar.bf16, w.view(), x.data(), kRows, 2));
}

TEST_P(TilesTest, OutputsOfOneCallShareTheirInput) {
  constexpr int kRows = 21, kInputs = 64;
  const Matrix a(WeightType::kBf16, 40, kInputs, 1), b(WeightType::kQ4_1, 17, kInputs, 2),
      c(WeightType::kF16, 33, kInputs, 3);
  const std::vector<float> x = RandomRows(kRows, kInputs, 11), bias = RandomRows(1, 40, 12);
  ThreadPool pool(2);
  GemmScratch scratch;
  const auto wa = PackForFast(pool, a.view()), wb = PackForFast(pool, b.view()),
             wc = PackForFast(pool, c.view());
  const auto run = [&](const Bf16Kernels& bf16) {
    std::vector<float> y(kRows * 90, 0.5f);
    const GemmOutput outputs[] = {
        {.weight = wa.get(), .bias = bias.data(), .y = y.data(), .ldy = 90, .accumulate = true},
        {.weight = wb.get(), .y = y.data() + 40, .ldy = 90},
        {.weight = wc.get(), .y = y.data() + 57, .ldy = 90, .accumulate = true}};
    RunGemm(pool, WithBf16(bf16), {.x = x.data(), .rows = kRows, .k = kInputs, .outputs = outputs},
            scratch);
    return Bits(y);
  };
  EXPECT_EQ(run(tiles()), run(kGemmScalar.bf16));
}

TEST_P(TilesTest, ExtremeActivationsStayInTheirRow) {
  constexpr int kRows = 18, kInputs = 128;
  const float factors[] = {0.0f, 1e-42f, 1e-36f, 1e-30f, 1e-12f, 1e20f, 1e30f, -1.0f};
  std::vector<float> x = RandomRows(kRows, kInputs, 21);
  for (int i = 0; i < kRows * kInputs; ++i) x[i] *= factors[i / kInputs % 8];
  const Matrix w(WeightType::kBf16, 40, kInputs, 22);
  const auto want = Product(kGemmScalar.bf16, w.view(), x.data(), kRows);
  EXPECT_EQ(Product(tiles(), w.view(), x.data(), kRows), want);

  x[3 * kInputs + 9] = std::nanf("");
  const auto have = Product(tiles(), w.view(), x.data(), kRows);
  for (size_t i = 0; i < have.size(); ++i) {
    if (i / 40 == 3) {
      EXPECT_TRUE(std::isnan(std::bit_cast<float>(have[i])));
    } else {
      ASSERT_EQ(have[i], want[i]);
    }
  }
}

TEST(AmxKernels, TakeManyRowsOfBf16AndLeaveTheRestToVnni) {
  for (int rows : {1, 4, 5, 512}) {
    const GemmKernels kernels = GemmKernelsFor(Target::kAmx, rows);
    EXPECT_EQ(kernels.bf16.multiply, rows < 5 ? kGemmAvx512Vnni.bf16.multiply : kBf16Amx.multiply);
    EXPECT_EQ(kernels.q4_1, kGemmAvx512Vnni.q4_1);
    EXPECT_EQ(kernels.f32, kGemmAvx512Vnni.f32);
  }
}

// The bytes as the processor reads them.
TEST(TileConfig, OfNineteenRows) {
  const TileConfig config = ConfigForRows(19);
  uint8_t want[64] = {1};
  for (int tile = 0; tile < 8; ++tile) want[16 + 2 * tile] = 64;
  const uint8_t rows[] = {16, 16, 3, 3, 16, 3, 16, 16};
  std::copy(rows, rows + 8, want + 48);
  EXPECT_EQ(std::memcmp(&config, want, sizeof(want)), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(&config) % 64, 0u);

  const TileConfig short_one = ConfigForRows(7);
  for (int tile : {2, 3, 5}) EXPECT_EQ(short_one.rows[tile] + short_one.colsb[tile], 0);
}

// ---- the probe ---------------------------------------------------------------------------------

TEST(AmxProbe, AcceptsWhatTheInstructionsMean) { EXPECT_TRUE(EqualScalar(kEmulated)); }

TEST(AmxProbe, RefusesGradualUnderflow) {
  Bf16Kernels kernels = kGemmScalar.bf16;
  EXPECT_TRUE(EqualScalar(kernels));
  kernels.multiply = [](const GemmStep& s) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode & ~0x8040u);
    kGemmScalar.bf16.multiply(s);
    _mm_setcsr(mode);
  };
  EXPECT_FALSE(EqualScalar(kernels));
}

// One chain for even and odd inputs.
void MultiplyInOneChain(const GemmStep& s) {
  for (int i = 0; i < s.rows * s.panels * kPanelOutputs; ++i) {
    const int row = i / (s.panels * kPanelOutputs), output = i % (s.panels * kPanelOutputs);
    const std::byte* line = s.weights + output / kPanelOutputs * s.weight_stride;
    s.acc[i] = 0;
    for (int k = 0; k < s.blocks * kBlockInputs; ++k) {
      Bf16 w;
      std::memcpy(&w, line + (k / 2 * kPanelOutputs + output % kPanelOutputs) * 4 + k % 2 * 2, 2);
      const float x = s.x[(k / kBlockInputs * s.rows + row) * kBlockInputs + k % kBlockInputs];
      s.acc[i] = std::fma(x, ToFloat(w), s.acc[i]);
    }
  }
}

TEST(AmxProbe, RefusesAnotherOrderOfSums) {
  Bf16Kernels kernels = kGemmScalar.bf16;
  kernels.multiply = MultiplyInOneChain;
  EXPECT_FALSE(EqualScalar(kernels));
}

// ---- the emulation ------------------------------------------------------------------------------

TEST(EmulatedTilesDeathTest, FaultsAsTheProcessorDoes) {
  EXPECT_DEATH(EmulatedTiles::Zero<0>(), "configured before use");
  const auto configured = [](int rows_a, auto then) {
    TileConfig config;
    config.Set(0, 4);
    config.Set(1, rows_a);
    config.Set(2, 16);
    EmulatedTiles::Configure(config);
    then();
  };
  EXPECT_DEATH(configured(4, [] { EmulatedTiles::Zero<3>(); }), "in use has rows");
  EXPECT_DEATH(configured(5, [] { EmulatedTiles::Multiply<0, 1, 2>(); }), "A \\[m\\]\\[k\\]");
  EXPECT_DEATH(configured(17, [] {}), "at most 16 rows");
}

}  // namespace
}  // namespace lynx::cpu
