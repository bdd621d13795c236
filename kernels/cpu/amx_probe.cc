// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/amx_probe.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/aligned_array.h"
#include "kernels/cpu/float_mode.h"

namespace lynx::cpu {
namespace {

constexpr int kPanels = 3;
constexpr int kBlocks = 3;
constexpr int kMaxRows = 32;
constexpr int64_t kInputs = kBlocks * kBlockInputs;
constexpr size_t kPanelBytes = kBlocks * kBlockInputs / 2 * kLineBytes;

// Numbers of either sign and a random mantissa, their exponents up to 6 from a given one.
class AwkwardNumbers {
 public:
  // The bits of a BF16 value. Exponents are biased; zero is that of subnormals.
  uint16_t Next(int exponent) {
    state_ = state_ * 1664525u + 1013904223u;
    const int spread = static_cast<int>(state_ >> 24) % 13 - 6;
    const int biased = std::min(std::max(exponent + spread, 0), 254);
    return static_cast<uint16_t>((state_ >> 16 & 0x807f) | biased << 7);
  }

 private:
  uint32_t state_ = 1;
};

// Of row r: 1, 2^-64 (its products with the second panel's 2^-63 lie around the smallest normal
// number), subnormals, numbers whose products overflow.
int RowExponent(int r) {
  constexpr int kExponents[] = {127, 63, 2, 250};
  return kExponents[r % 4];
}
constexpr int kPanelExponents[kPanels] = {127, 64, 124};

struct Problem {
  AlignedArray<float> x = AllocateAligned<float>(kMaxRows * kInputs);
  AlignedArray<std::byte> weights = AllocateAligned<std::byte>(kPanels * kPanelBytes);
};

Problem MakeProblem() {
  Problem problem;
  AwkwardNumbers numbers;
  for (int i = 0; i < kMaxRows * kInputs; ++i) {
    const int row = i / kInputs;
    uint32_t bits = numbers.Next(RowExponent(row));
    if (row % 8 == 4 && i % 41 == 0) bits = 0x7f80;  // infinity
    problem.x[i] = std::bit_cast<float>(bits << 16);
  }
  for (size_t at = 0; at < kPanels * kPanelBytes; at += sizeof(uint16_t)) {
    const uint16_t bits = numbers.Next(kPanelExponents[at / kPanelBytes]);
    std::memcpy(&problem.weights[at], &bits, sizeof(bits));
  }
  return problem;
}

// acc is [rows][kPanels * 16].
void Multiply(const Bf16Kernels& kernels, const Problem& problem, int rows, float* acc) {
  const auto rounded = AllocateAligned<float>(kMaxRows * kInputs);
  int tile_rows = 0;
  for (int first = 0; first < rows; first += kernels.max_rows) {
    const int group = std::min(rows - first, kernels.max_rows);
    kernels.round_rows({.x = problem.x.get() + first * kInputs,
                        .rows = group,
                        .k = kInputs,
                        .block_begin = 0,
                        .block_end = kBlocks},
                       rounded.get());
    kernels.multiply({.rows = group,
                      .panels = kPanels,
                      .blocks = kBlocks,
                      .weights = problem.weights.get(),
                      .weight_stride = kPanelBytes,
                      .x = rounded.get(),
                      .tile_rows = &tile_rows,
                      .acc = acc + size_t(first) * kPanels * kPanelOutputs});
  }
  if (tile_rows != 0) kernels.release();
}

// arch_prctl(2). The headers of Linux before 5.16 lack them.
constexpr int kGetPermittedState = 0x1022, kRequestState = 0x1023;
constexpr int kTileDataState = 18;  // of XCR0

bool RequestTiles() {
  uint64_t permitted = 0;
  return syscall(SYS_arch_prctl, kRequestState, kTileDataState) == 0 &&
         syscall(SYS_arch_prctl, kGetPermittedState, &permitted) == 0 &&
         (permitted >> kTileDataState & 1) != 0;
}

bool SameNumber(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

bool EqualScalar(const Bf16Kernels& kernels) {
  ScopedFlushToZero flush_to_zero;
  constexpr int kSums = kMaxRows * kPanels * kPanelOutputs;
  const Problem problem = MakeProblem();
  const auto want = AllocateAligned<float>(kSums), have = AllocateAligned<float>(kSums);
  for (int rows : {5, 16, 19, kMaxRows}) {
    Multiply(kGemmScalar.bf16, problem, rows, want.get());
    Multiply(kernels, problem, rows, have.get());
    for (int i = 0; i < rows * kPanels * kPanelOutputs; ++i) {
      if (!SameNumber(have[i], want[i])) return false;
    }
  }
  return true;
}

const char* AmxFault() {
  if (!RequestTiles()) return "the kernel does not grant the tile registers";
  if (!EqualScalar(kBf16Amx)) return "its products are not those of the other instruction sets";
  return nullptr;
}

}  // namespace lynx::cpu
