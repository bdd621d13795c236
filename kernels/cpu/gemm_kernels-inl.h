// SPDX-License-Identifier: Apache-2.0
// The vector kernels of gemm_kernels.h, written once for every instruction set. V names the
// vectors: kLanes dwords (16 or 8, a whole or half a line), and the micro-tiles that fit its
// registers. A micro-tile is kRows rows times kVectors vectors of outputs; it is unrolled by folds,
// so that its accumulators stay in registers. The sums of BF16 wait in memory (L1) between tiles:
// tile order needs two chains for each.
//
// Weights are read once, in order, with a software prefetch on every stream; M = 1 therefore runs
// at memory bandwidth, many rows at the rate of the multipliers.
//
// Included inside an anonymous namespace of lynx::cpu under a target pragma.

#define LYNX_INLINE inline __attribute__((always_inline))

constexpr int64_t kPrefetchBytes = 2048;

template <int... kIndex, typename F>
LYNX_INLINE void UnrollEach(std::integer_sequence<int, kIndex...>, F&& f) {
  (f(std::integral_constant<int, kIndex>{}), ...);
}

// f(0), f(1) … f(kCount - 1), each with its index as a constant.
template <int kCount, typename F>
LYNX_INLINE void Unroll(F&& f) {
  UnrollEach(std::make_integer_sequence<int, kCount>{}, f);
}

template <typename V>
constexpr int kVectorsPerPanel = kPanelOutputs / V::kLanes;

// The byte streams of kVectors neighbouring vectors, from vector `first` of the step on.
template <typename V, int kVectors>
struct Streams {
  const std::byte* at[kVectors];
  LYNX_INLINE Streams(const std::byte* base, size_t stride, int first, int lane_bytes) {
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const int vector = first + v;
      at[v] = base + vector / kVectorsPerPanel<V> * stride +
              vector % kVectorsPerPanel<V> * V::kLanes * lane_bytes;
    });
  }
};

template <typename V>
LYNX_INLINE float* Acc(const GemmStep& s, int row, int vector) {
  return s.acc + size_t(row) * s.panels * kPanelOutputs + vector * V::kLanes;
}

template <typename V, int kRows, int kVectors>
LYNX_INLINE void Bf16Tile(const GemmStep& s, int first) {
  using F = typename V::F;
  Streams<V, kVectors> w(s.weights, s.weight_stride, first, 4);
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    V::Store(Acc<V>(s, i / kVectors, first + i % kVectors), V::Zero());
  });
  const float* x = s.x;
  for (int64_t b = 0; b < s.blocks; ++b, x += kRows * kBlockInputs) {
    F even[kRows * kVectors], odd[kRows * kVectors];
    Unroll<kRows * kVectors>([&](auto i)
                                 __attribute__((always_inline)) { even[i] = odd[i] = V::Zero(); });
#pragma GCC unroll 4
    for (int k = 0; k < kBlockInputs; k += 2) {
      F w_even[kVectors], w_odd[kVectors];
      Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        V::Prefetch(w.at[v] + kPrefetchBytes);
        V::LoadBf16Pairs(w.at[v], w_even[v], w_odd[v]);
        w.at[v] += kLineBytes;
      });
      Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
        constexpr int kRow = i / kVectors * kBlockInputs;
        even[i] = V::Fma(V::Broadcast(x + kRow + k), w_even[i % kVectors], even[i]);
        odd[i] = V::Fma(V::Broadcast(x + kRow + k + 1), w_odd[i % kVectors], odd[i]);
      });
    }
    Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      float* acc = Acc<V>(s, i / kVectors, first + i % kVectors);
      V::Store(acc, V::Add(V::Load(acc), V::Add(even[i], odd[i])));
    });
  }
}

template <typename V, int kRows, int kVectors>
LYNX_INLINE void F32Tile(const GemmStep& s, int first) {
  using F = typename V::F;
  Streams<V, kVectors> w(s.weights, s.weight_stride, first, 4);
  F sum[kRows * kVectors];
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    sum[i] = V::Load(Acc<V>(s, i / kVectors, first + i % kVectors));
  });
  const float* x = s.x;
  for (int64_t b = 0; b < s.blocks; ++b, x += kRows * kBlockInputs) {
#pragma GCC unroll 4
    for (int k = 0; k < kBlockInputs; ++k) {
      F line[kVectors];
      Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        line[v] = V::Load(reinterpret_cast<const float*>(w.at[v]));
        w.at[v] += kLineBytes;
      });
      Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
        constexpr int kRow = i / kVectors * kBlockInputs;
        sum[i] = V::Fma(V::Broadcast(x + kRow + k), line[i % kVectors], sum[i]);
      });
    }
  }
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    V::Store(Acc<V>(s, i / kVectors, first + i % kVectors), sum[i]);
  });
}

// ---- 8-bit activations -------------------------------------------------------------------------

// What the codes of a format stand for: code - kZero, and where they lie.
struct Q8_0 {
  static constexpr int kLines = 8, kZero = 128;
  static constexpr bool kNibbles = false, kHasMin = false;
};
struct Q4_0 {
  static constexpr int kLines = 4, kZero = 8;
  static constexpr bool kNibbles = true, kHasMin = false;
};
struct Q4_1 {
  static constexpr int kLines = 4, kZero = 0;
  static constexpr bool kNibbles = true, kHasMin = true;
};

// The integer dots of one block. Codes are unsigned; V::Dot adds 4 products to every dword. Where
// that takes VNNI, nibbles are summed as int16 pairs instead (32 products of at most 15 * 127 fit
// two by two: 16 pair sums never leave int16), and bytes are split into even and odd ones.
template <typename V, typename Q, int kRows, int kVectors>
LYNX_INLINE void BlockDots(const std::byte* const (&w)[kVectors], const int8_t* x,
                           const int32_t* sums, typename V::I (&dot)[kRows * kVectors]) {
  using I = typename V::I;
  constexpr bool kPairSums = !V::kHasDot && Q::kNibbles;
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    dot[i] = kPairSums ? V::IntZero() : V::IntSet(-Q::kZero * sums[i / kVectors]);
  });
  const auto add = [&](const I(&codes)[kVectors], int group) __attribute__((always_inline)) {
    if constexpr (V::kHasDot) {
      Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
        constexpr int kRow = i / kVectors * kBlockInputs;
        dot[i] = V::Dot(dot[i], codes[i % kVectors], V::Broadcast4(x + kRow + group * 4));
      });
    } else if constexpr (Q::kNibbles) {
      Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
        constexpr int kRow = i / kVectors * kBlockInputs;
        dot[i] = V::AddPairs(dot[i], codes[i % kVectors], V::Broadcast4(x + kRow + group * 4));
      });
    } else {
      I even[kVectors], odd[kVectors];
      Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        V::SplitUnsigned(codes[v], even[v], odd[v]);
      });
      Unroll<kRows>([&](auto row) __attribute__((always_inline)) {
        I x_even, x_odd;
        V::SplitSigned(V::Broadcast4(x + row * kBlockInputs + group * 4), x_even, x_odd);
        Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
          I& sum = dot[row * kVectors + v];
          sum = V::AddWords(V::AddWords(sum, even[v], x_even), odd[v], x_odd);
        });
      });
    }
  };
  Unroll<Q::kLines>([&](auto line) __attribute__((always_inline)) {
    I low[kVectors], high[kVectors];
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      V::Prefetch(w[v] + line * kLineBytes + kPrefetchBytes);
      low[v] = V::LoadInt(w[v] + line * kLineBytes);
      if constexpr (Q::kNibbles) {
        high[v] = V::HighNibbles(low[v]);
        low[v] = V::LowNibbles(low[v]);
      }
    });
    add(low, line);
    if constexpr (Q::kNibbles) add(high, line + 4);
  });
  if constexpr (kPairSums) {
    Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      dot[i] = V::IntAdd(V::WidenPairs(dot[i]), V::IntSet(-Q::kZero * sums[i / kVectors]));
    });
  }
}

template <typename V, typename Q, int kRows, int kVectors>
LYNX_INLINE void Int8Tile(const GemmStep& s, int first) {
  using F = typename V::F;
  constexpr int kScaleLine = kPanelOutputs * 2;
  constexpr int kScaleBytes = Q::kHasMin ? 2 * kScaleLine : kScaleLine;
  Streams<V, kVectors> w(s.weights, s.weight_stride, first, 4);
  Streams<V, kVectors> scale(s.scales, s.scale_stride, first, 2);
  F sum[kRows * kVectors];
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) { sum[i] = V::Zero(); });
  for (int64_t b = 0; b < s.blocks; ++b) {
    const int64_t index = b * kRows;
    typename V::I dot[kRows * kVectors];
    BlockDots<V, Q, kRows, kVectors>(w.at, s.q.codes + index * kBlockInputs, s.q.sums + index, dot);
    F d[kVectors], m[kVectors];
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      V::Prefetch(scale.at[v] + kPrefetchBytes / 4);
      d[v] = V::LoadHalf(scale.at[v]);
      if constexpr (Q::kHasMin) m[v] = V::LoadHalf(scale.at[v] + kScaleLine);
      scale.at[v] += kScaleBytes;
      w.at[v] += Q::kLines * kLineBytes;
    });
    Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRow = i / kVectors, kVector = i % kVectors;
      const F scales = V::Mul(d[kVector], V::Broadcast(s.q.scales + index + kRow));
      sum[i] = V::Fma(V::ToFloat(dot[i]), scales, sum[i]);
      if constexpr (Q::kHasMin) {
        sum[i] = V::Fma(m[kVector], V::Broadcast(s.q.scaled_sums + index + kRow), sum[i]);
      }
    });
  }
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    V::Store(Acc<V>(s, i / kVectors, first + i % kVectors), sum[i]);
  });
}

// ---- from run-time sizes to micro-tiles ---------------------------------------------------------

// Runs T::Run<rows, vectors>(s, first) over all vectors of the step, T::Vectors(rows) at a time.
template <typename V, typename T, int kRows>
void RunRows(const GemmStep& s) {
  constexpr int kVectors = T::Vectors(kRows);
  const int total = s.panels * kVectorsPerPanel<V>;
  int first = 0;
  for (; first + kVectors <= total; first += kVectors) T::template Run<kRows, kVectors>(s, first);
  for (; first < total; ++first) T::template Run<kRows, 1>(s, first);
}

template <typename V, typename T>
void RunStep(const GemmStep& s) {
  Unroll<T::kMaxRows>([&](auto i) {
    if (s.rows == i + 1) RunRows<V, T, i + 1>(s);
  });
}

template <typename V>
struct Bf16Kernel {
  static constexpr int kMaxRows = V::kBf16Rows;
  static constexpr int Vectors(int rows) { return V::Bf16Vectors(rows); }
  template <int kRows, int kVectors>
  static void Run(const GemmStep& s, int first) {
    Bf16Tile<V, kRows, kVectors>(s, first);
  }
};

template <typename V>
struct F32Kernel {
  static constexpr int kMaxRows = V::kF32Rows;
  static constexpr int Vectors(int) { return 2; }
  template <int kRows, int kVectors>
  static void Run(const GemmStep& s, int first) {
    F32Tile<V, kRows, kVectors>(s, first);
  }
};

template <typename V, typename Q>
struct Int8Kernel {
  static constexpr int kMaxRows = V::kInt8Rows;
  static constexpr int Vectors(int rows) { return V::Int8Vectors(rows); }
  template <int kRows, int kVectors>
  static void Run(const GemmStep& s, int first) {
    Int8Tile<V, Q, kRows, kVectors>(s, first);
  }
};

// 8 x 8 at a time; AVX2, which every vector target has.
LYNX_INLINE void Transpose8x8(const float* in, int64_t in_stride, float* out) {
  __m256 row[8], pair[8], quad[8];
  Unroll<8>([&](auto i)
                __attribute__((always_inline)) { row[i] = _mm256_loadu_ps(in + i * in_stride); });
  Unroll<4>([&](auto i) __attribute__((always_inline)) {
    pair[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
    pair[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
  });
  Unroll<2>([&](auto i) __attribute__((always_inline)) {
    quad[4 * i] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0x44);
    quad[4 * i + 1] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0xee);
    quad[4 * i + 2] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0x44);
    quad[4 * i + 3] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0xee);
  });
  Unroll<4>([&](auto i) __attribute__((always_inline)) {
    _mm256_storeu_ps(out + i * kPanelOutputs, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * kPanelOutputs,
                     _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  });
}

inline void Transpose16(const float* in, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 8) {
    Transpose8x8(in + i, size, out + i * kPanelOutputs);
    Transpose8x8(in + 8 * size + i, size, out + i * kPanelOutputs + 8);
  }
}

template <typename V>
constexpr GemmKernels MakeKernels() {
  return {
      .max_bf16_rows = V::kBf16Rows,
      .max_int8_rows = V::kInt8Rows,
      .max_f32_rows = V::kF32Rows,
      .bf16 = RunStep<V, Bf16Kernel<V>>,
      .q8_0 = RunStep<V, Int8Kernel<V, Q8_0>>,
      .q4_0 = RunStep<V, Int8Kernel<V, Q4_0>>,
      .q4_1 = RunStep<V, Int8Kernel<V, Q4_1>>,
      .f32 = RunStep<V, F32Kernel<V>>,
      .round_rows = RoundRows,
      .copy_rows = CopyRows,
      .quantize_rows = QuantizeRows,
      .transpose16 = Transpose16,
  };
}
