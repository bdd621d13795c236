// SPDX-License-Identifier: Apache-2.0
// The scalar kernels: one output at a time, every operation written out. Slow, and the meaning of
// all the others.
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

// Calls f(panel, output in the panel, row) for every result and stores what it returns.
template <typename F>
void ForEachOutput(const GemmStep& s, F&& f) {
  for (int p = 0; p < s.panels; ++p) {
    for (int r = 0; r < s.rows; ++r) {
      for (int j = 0; j < kPanelOutputs; ++j) {
        float& out = s.acc[(size_t(r) * s.panels + p) * kPanelOutputs + j];
        out = f(p, j, r, out);
      }
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
  ForEachOutput(s, [&s](int panel, int j, int row, float) {
    const std::byte* line = s.weights + panel * s.weight_stride + size_t(j) * 4;
    const float* x = s.x + size_t(row) * kBlockInputs;
    float sum = 0;
    for (int64_t b = 0; b < s.blocks; ++b, x += s.rows * kBlockInputs) {
      float even = 0, odd = 0;
      for (int i = 0; i < kBlockInputs; i += 2, line += kLineBytes) {
        const uint32_t pair = Load<uint32_t>(line);
        even = std::fma(x[i], std::bit_cast<float>(pair << 16), even);
        odd = std::fma(x[i + 1], std::bit_cast<float>(pair & 0xffff0000u), odd);
      }
      sum += even + odd;
    }
    return sum;
  });
}

void GemmF32Ref(const GemmStep& s) {
  ForEachOutput(s, [&s](int panel, int j, int row, float sum) {
    const std::byte* line = s.weights + panel * s.weight_stride + size_t(j) * 4;
    const float* x = s.x + size_t(row) * kBlockInputs;
    for (int64_t b = 0; b < s.blocks; ++b, x += s.rows * kBlockInputs) {
      for (int i = 0; i < kBlockInputs; ++i, line += kLineBytes) {
        sum = std::fma(x[i], Load<float>(line), sum);
      }
    }
    return sum;
  });
}

// Codes 4 i .. 4 i + 3 of a block, for i in 0 .. 7, of one output.
int CodeQ8_0(const std::byte* block, int i, int byte) {
  return std::to_integer<int>(block[i * kLineBytes + byte]) - 128;
}
int CodeQ4_0(const std::byte* block, int i, int byte) {
  return ((std::to_integer<int>(block[i % 4 * kLineBytes + byte]) >> (i / 4 * 4)) & 15) - 8;
}
int CodeQ4_1(const std::byte* block, int i, int byte) {
  return (std::to_integer<int>(block[i % 4 * kLineBytes + byte]) >> (i / 4 * 4)) & 15;
}

template <int (*kCode)(const std::byte*, int, int), int kLines, bool kHasMin>
void GemmInt8Ref(const GemmStep& s) {
  constexpr int kScaleBytes = kPanelOutputs * 2;
  ForEachOutput(s, [&s](int panel, int j, int row, float) {
    const std::byte* block = s.weights + panel * s.weight_stride + size_t(j) * 4;
    const std::byte* scale = s.scales + panel * s.scale_stride + size_t(j) * 2;
    float sum = 0;
    for (int64_t b = 0; b < s.blocks; ++b, block += kLines * kLineBytes) {
      const int64_t index = b * s.rows + row;
      const int8_t* x = s.q.codes + index * kBlockInputs;
      int32_t dot = 0;
      for (int i = 0; i < kBlockInputs; ++i) dot += kCode(block, i / 4, i % 4) * x[i];
      const float d = HalfToFloat(Load<uint16_t>(scale)) * s.q.scales[index];
      sum = std::fma(static_cast<float>(dot), d, sum);
      scale += kScaleBytes;
      if (kHasMin) {
        sum = std::fma(HalfToFloat(Load<uint16_t>(scale)), s.q.scaled_sums[index], sum);
        scale += kScaleBytes;
      }
    }
    return sum;
  });
}

void Transpose16(const float* in, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    for (int j = 0; j < kPanelOutputs; ++j) out[i * kPanelOutputs + j] = in[j * size + i];
  }
}

}  // namespace

const GemmKernels kGemmScalar = {
    .max_bf16_rows = 8,
    .max_int8_rows = 8,
    .max_f32_rows = 8,
    .bf16 = GemmBf16Ref,
    .q8_0 = GemmInt8Ref<CodeQ8_0, 8, false>,
    .q4_0 = GemmInt8Ref<CodeQ4_0, 4, false>,
    .q4_1 = GemmInt8Ref<CodeQ4_1, 4, true>,
    .f32 = GemmF32Ref,
    .round_rows = RoundRows,
    .copy_rows = CopyRows,
    .quantize_rows = QuantizeRows,
    .transpose16 = Transpose16,
};

}  // namespace lynx::cpu
