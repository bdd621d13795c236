// SPDX-License-Identifier: Apache-2.0
// Activations into the forms of gemm_kernels.h. Plain loops, written so that the compiler turns
// them into vectors of whatever instruction set the including file selects; no operation in them
// depends on that.
//
// Included inside an anonymous namespace of lynx::cpu, so that every instruction set has its own.

// Calls f(block's inputs [32], index of (block, row)) for every block of every row.
template <typename F>
inline void ForEachBlock(const ConvertParams& p, F&& f) {
  for (int64_t b = p.block_begin; b < p.block_end; ++b) {
    const int64_t first = b * kBlockInputs;
    const int64_t size = std::min<int64_t>(kBlockInputs, p.k - first);
    for (int r = 0; r < p.rows; ++r) {
      const float* in = p.x + r * p.k + first;
      float padded[kBlockInputs] = {};
      if (size < kBlockInputs) {
        std::copy(in, in + size, padded);
        in = padded;
      }
      f(in, b * p.rows + r);
    }
  }
}

// x rounded to BF16, nearest even, as the bits of a float32. NaN stays NaN.
inline uint32_t Bf16Bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return (nan ? u | 0x400000u : rounded) & 0xffff0000u;
}

inline void RoundRows(const ConvertParams& p, float* out) {
  ForEachBlock(p, [out](const float* in, int64_t index) {
    float* to = out + index * kBlockInputs;
    for (int i = 0; i < kBlockInputs; ++i) to[i] = std::bit_cast<float>(Bf16Bits(in[i]));
  });
}

inline void CopyRows(const ConvertParams& p, float* out) {
  ForEachBlock(p, [out](const float* in, int64_t index) {
    std::copy(in, in + kBlockInputs, out + index * kBlockInputs);
  });
}

// scale = max |x| / 127, codes = x * (127 / max |x|) rounded to nearest even, in -127 .. 127.
// A block whose magnitudes are all below 2^-100 is zero (its inverse would overflow); one with Inf
// or NaN gets a NaN scale, so that the outputs it reaches are NaN.
inline void QuantizeRows(const ConvertParams& p, const Int8Rows& out) {
  constexpr uint32_t kSmallest = 27u << 23;  // 2^-100
  constexpr uint32_t kInfinity = 255u << 23;
  ForEachBlock(p, [&out](const float* in, int64_t index) {
    uint32_t max_bits = 0;
    for (int i = 0; i < kBlockInputs; ++i) {
      max_bits = std::max(max_bits, std::bit_cast<uint32_t>(in[i]) & 0x7fffffffu);
    }
    const float max = std::bit_cast<float>(max_bits);
    const bool usable = max_bits >= kSmallest && max_bits < kInfinity;
    const float inverse = usable ? 127.0f / max : 0.0f;
    float scale = usable ? max / 127.0f : 0.0f;
    if (max_bits >= kInfinity) scale = std::numeric_limits<float>::quiet_NaN();

    int8_t* codes = out.codes + index * kBlockInputs;
    int32_t sum = 0;
    if (usable) {
      for (int i = 0; i < kBlockInputs; ++i) {
        // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
        const float shifted = in[i] * inverse + 12582912.0f;
        const int32_t code = std::bit_cast<int32_t>(shifted) - 0x4b400000;
        codes[i] = static_cast<int8_t>(code);
        sum += code;
      }
    } else {
      std::fill(codes, codes + kBlockInputs, int8_t{0});
    }
    out.scales[index] = scale;
    out.scaled_sums[index] = scale * static_cast<float>(sum);
    out.sums[index] = sum;
  });
}
