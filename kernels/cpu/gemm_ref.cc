// SPDX-License-Identifier: Apache-2.0
// The scalar kernels: every operation written out, one after another. Slow, and the meaning of all
// the others.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/gemm_kernels.h"

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"

// Calls f(panel, row, the 16 sums of the panel for that row) for every result.
template <typename F>
void ForEachRowOfPanel(const GemmStep& s, const F& f) {
  for (int p = 0; p < s.panels; ++p) {
    for (int r = 0; r < s.rows; ++r) {
      f(p, r, s.acc + (size_t(r) * s.panels + p) * kPanelOutputs);
    }
  }
}

template <typename T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

void GemmBf16Ref(const GemmStep& s) {
  ForEachRowOfPanel(s, [&s](int panel, int row, float* sums) {
    const std::byte* line = s.weights + panel * s.weight_stride;
    const float* x = s.x + size_t(row) * kBlockInputs;
    std::fill(sums, sums + kPanelOutputs, 0.0f);
    for (int64_t b = 0; b < s.blocks; ++b, x += s.rows * kBlockInputs) {
      float even[kPanelOutputs] = {}, odd[kPanelOutputs] = {};
      for (int i = 0; i < kBlockInputs; i += 2, line += kLineBytes) {
        for (int j = 0; j < kPanelOutputs; ++j) {
          const uint32_t pair = Load<uint32_t>(line + j * 4);
          even[j] = std::fma(x[i], std::bit_cast<float>(pair << 16), even[j]);
          odd[j] = std::fma(x[i + 1], std::bit_cast<float>(pair & 0xffff0000u), odd[j]);
        }
      }
      for (int j = 0; j < kPanelOutputs; ++j) sums[j] += even[j] + odd[j];
    }
  });
}

void GemmF32Ref(const GemmStep& s) {
  ForEachRowOfPanel(s, [&s](int panel, int row, float* sums) {
    const std::byte* line = s.weights + panel * s.weight_stride;
    const float* x = s.x + size_t(row) * kBlockInputs;
    for (int64_t b = 0; b < s.blocks; ++b, x += s.rows * kBlockInputs) {
      for (int i = 0; i < kBlockInputs; ++i, line += kLineBytes) {
        for (int j = 0; j < kPanelOutputs; ++j) {
          sums[j] = std::fma(x[i], Load<float>(line + j * 4), sums[j]);
        }
      }
    }
  });
}

// The weights that stand for 4 inputs, group i of 8 in a block, of 16 outputs: codes[output][4].
void CodesQ8_0(const std::byte* block, int i, int (&codes)[4 * kPanelOutputs]) {
  const std::byte* line = block + i * kLineBytes;
  for (int j = 0; j < kLineBytes; ++j) codes[j] = std::to_integer<int>(line[j]) - 128;
}
void CodesQ4_1(const std::byte* block, int i, int (&codes)[4 * kPanelOutputs]) {
  const std::byte* line = block + i % 4 * kLineBytes;
  const int shift = i / 4 * 4;
  for (int j = 0; j < kLineBytes; ++j) codes[j] = (std::to_integer<int>(line[j]) >> shift) & 15;
}
void CodesQ4_0(const std::byte* block, int i, int (&codes)[4 * kPanelOutputs]) {
  CodesQ4_1(block, i, codes);
  for (int& code : codes) code -= 8;
}

template <void (*kCodes)(const std::byte*, int, int (&)[4 * kPanelOutputs])>
void BlockDots(const std::byte* block, const int8_t* x, int (&dots)[kPanelOutputs]) {
  std::fill(dots, dots + kPanelOutputs, 0);
  for (int i = 0; i < kBlockInputs / 4; ++i, x += 4) {
    int codes[4 * kPanelOutputs];
    kCodes(block, i, codes);
    for (int j = 0; j < kPanelOutputs; ++j) {
      for (int k = 0; k < 4; ++k) dots[j] += codes[4 * j + k] * x[k];
    }
  }
}

template <void (*kCodes)(const std::byte*, int, int (&)[4 * kPanelOutputs]), int kLines,
          bool kHasMin>
void GemmInt8Ref(const GemmStep& s) {
  constexpr int kScaleLine = kPanelOutputs * 2;
  ForEachRowOfPanel(s, [&s](int panel, int row, float* sums) {
    const std::byte* block = s.weights + panel * s.weight_stride;
    const std::byte* scales = s.scales + panel * s.scale_stride;
    std::fill(sums, sums + kPanelOutputs, 0.0f);
    for (int64_t b = 0; b < s.blocks; ++b, block += kLines * kLineBytes) {
      const int64_t index = b * s.rows + row;
      int dots[kPanelOutputs];
      BlockDots<kCodes>(block, s.q.codes + index * kBlockInputs, dots);
      for (int j = 0; j < kPanelOutputs; ++j) {
        const float d = HalfToFloat(Load<uint16_t>(scales + j * 2)) * s.q.scales[index];
        sums[j] = std::fma(static_cast<float>(dots[j]), d, sums[j]);
        if (kHasMin) {
          const float m = HalfToFloat(Load<uint16_t>(scales + kScaleLine + j * 2));
          sums[j] = std::fma(m, s.q.scaled_sums[index], sums[j]);
        }
      }
      scales += kHasMin ? 2 * kScaleLine : kScaleLine;
    }
  });
}

void Transpose16(const float* in, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    for (int j = 0; j < kPanelOutputs; ++j) out[i * kPanelOutputs + j] = in[j * size + i];
  }
}

}  // namespace

const GemmKernels kGemmScalar = {
    .max_int8_rows = 8,
    .max_f32_rows = 8,
    .bf16 = {.max_rows = 8, .multiply = GemmBf16Ref, .round_rows = RoundRows},
    .q8_0 = GemmInt8Ref<CodesQ8_0, 8, false>,
    .q4_0 = GemmInt8Ref<CodesQ4_0, 4, false>,
    .q4_1 = GemmInt8Ref<CodesQ4_1, 4, true>,
    .f32 = GemmF32Ref,
    .copy_rows = CopyRows,
    .quantize_rows = QuantizeRows,
    .transpose16 = Transpose16,
};

}  // namespace lynx::cpu
