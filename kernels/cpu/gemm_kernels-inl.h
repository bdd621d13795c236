// SPDX-License-Identifier: Apache-2.0
// The vector kernels of gemm_kernels.h, written once for every instruction set. V names the
// vectors: kLanes dwords (16 or 8, a whole or half a line), and the micro-tiles that fit its
// registers. A micro-tile is kRows rows times kVectors vectors of outputs; it is unrolled by folds,
// so that its accumulators stay in registers. The sums of BF16 wait in memory (L1) between tiles.
//
// Weights are read in order, with a software prefetch on every stream; one row therefore runs at
// memory bandwidth, many rows at the rate of the multipliers.
//
// Included inside an anonymous namespace of lynx::cpu under a target pragma.

#define LYNX_INLINE inline __attribute__((always_inline))

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

// The panels that kVectors vectors side by side belong to.
template <typename V, int kVectors>
constexpr int kPanelsAtOnce = std::max(1, kVectors / kVectorsPerPanel<V>);

// The even (kOdd = 0) or odd chains of one tile. One parity at a time halves the accumulators, so
// that a micro-tile can have twice the rows for every line that is loaded and split.
template <typename V, int kOdd, int kRows, int kVectors>
LYNX_INLINE void Bf16Chains(const std::byte* const (&w)[kVectors], int64_t ahead, const float* x,
                            typename V::F (&sum)[kRows * kVectors]) {
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) { sum[i] = V::Zero(); });
#pragma GCC unroll 4
  for (int line = 0; line < kBlockInputs / 2; ++line) {
    typename V::F inputs[kVectors];
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const std::byte* at = w[v] + line * kLineBytes;
      if constexpr (kOdd == 0) {
        V::Prefetch(at + ahead);
        inputs[v] = V::LowBf16(at);
      } else {
        inputs[v] = V::HighBf16(at);
      }
    });
    Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRow = i / kVectors * kBlockInputs;
      sum[i] = V::Fma(V::Broadcast(x + kRow + 2 * line + kOdd), inputs[i % kVectors], sum[i]);
    });
  }
}

template <typename V, int kRows, int kVectors>
LYNX_INLINE void Bf16Tile(const GemmStep& s, int first) {
  constexpr int kSums = kRows * kVectors;
  constexpr int64_t kTileBytes = kBlockInputs / 2 * kLineBytes;
  Streams<V, kVectors> w(s.weights, s.weight_stride, first, 4);
  Unroll<kSums>([&](auto i) __attribute__((always_inline)) {
    V::Store(Acc<V>(s, i / kVectors, first + i % kVectors), V::Zero());
  });
  const float* x = s.x;
  for (int64_t b = 0; b < s.blocks; ++b, x += kRows * kBlockInputs) {
    const int64_t ahead = BlocksAhead(s, b, kPanelsAtOnce<V, kVectors>) * kTileBytes;
    typename V::F sum[kSums];
    float even[kSums * V::kLanes];
    Bf16Chains<V, 0, kRows, kVectors>(w.at, ahead, x, sum);
    Unroll<kSums>([&](auto i)
                      __attribute__((always_inline)) { V::Store(even + i * V::kLanes, sum[i]); });
    Bf16Chains<V, 1, kRows, kVectors>(w.at, ahead, x, sum);
    Unroll<kSums>([&](auto i) __attribute__((always_inline)) {
      float* acc = Acc<V>(s, i / kVectors, first + i % kVectors);
      V::Store(acc, V::Add(V::Load(acc), V::Add(V::Load(even + i * V::kLanes), sum[i])));
    });
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) { w.at[v] += kTileBytes; });
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

// Nibbles without V::Dot: sums of products are int16 over the whole block.
template <typename V, typename Q>
constexpr bool kSumsInt16 = !V::kHasDot && Q::kNibbles;

// Adds the products of one line of codes with 4 inputs of every row. V::Dot does that at once.
// Without it products are first summed in pairs, as int16: 8 pairs of nibble products (2 * 15 * 127
// each) stay in int16; a pair of byte products (2 * 128 * 127) fits when one factor is |w| and the
// other x with the sign of w.
template <typename V, typename Q, int kRows, int kVectors>
LYNX_INLINE void AddProducts(const typename V::I (&codes)[kVectors], const int8_t* x,
                             typename V::I (&dot)[kRows * kVectors]) {
  using I = typename V::I;
  I weight[kVectors], magnitude[kVectors];
  if constexpr (!V::kHasDot && !Q::kNibbles) {
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      weight[v] = V::FlipSigns(codes[v]);
      magnitude[v] = V::Magnitudes(weight[v]);
    });
  }
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    constexpr int kVector = i % kVectors;
    const I inputs = V::Broadcast4(x + i / kVectors * kBlockInputs);
    if constexpr (V::kHasDot) {
      dot[i] = V::Dot(dot[i], codes[kVector], inputs);
    } else if constexpr (Q::kNibbles) {
      dot[i] = V::IntAdd16(dot[i], V::PairProducts(codes[kVector], inputs));
    } else {
      const I pairs = V::PairProducts(magnitude[kVector], V::WithSignOf(weight[kVector], inputs));
      dot[i] = V::IntAdd(dot[i], V::WidenPairs(pairs));
    }
  });
}

// The integer dots of one block.
template <typename V, typename Q, int kRows, int kVectors>
LYNX_INLINE void BlockDots(const std::byte* const (&w)[kVectors], int64_t ahead, const int8_t* x,
                           const int32_t* sums, typename V::I (&dot)[kRows * kVectors]) {
  Unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    dot[i] = V::kHasDot ? V::IntSet(-Q::kZero * sums[i / kVectors]) : V::IntZero();
  });
  Unroll<Q::kLines>([&](auto line) __attribute__((always_inline)) {
    typename V::I low[kVectors], high[kVectors];
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      V::Prefetch(w[v] + line * kLineBytes + ahead);
      low[v] = V::LoadInt(w[v] + line * kLineBytes);
      if constexpr (Q::kNibbles) {
        high[v] = V::HighNibbles(low[v]);
        low[v] = V::LowNibbles(low[v]);
      }
    });
    AddProducts<V, Q, kRows>(low, x + line * 4, dot);
    if constexpr (Q::kNibbles) AddProducts<V, Q, kRows>(high, x + (line + 4) * 4, dot);
  });
  if constexpr (kSumsInt16<V, Q>) {
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
    const int64_t ahead = BlocksAhead(s, b, kPanelsAtOnce<V, kVectors>);
    BlockDots<V, Q, kRows, kVectors>(w.at, ahead * Q::kLines * kLineBytes,
                                     s.q.codes + index * kBlockInputs, s.q.sums + index, dot);
    F d[kVectors], m[kVectors];
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      V::Prefetch(scale.at[v] + ahead * kScaleBytes);
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
struct Bf16Product {
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
      .max_int8_rows = V::kInt8Rows,
      .max_f32_rows = V::kF32Rows,
      .bf16 = {.max_rows = V::kBf16Rows,
               .multiply = RunStep<V, Bf16Product<V>>,
               .round_rows = RoundRows},
      .q8_0 = RunStep<V, Int8Kernel<V, Q8_0>>,
      .q4_0 = RunStep<V, Int8Kernel<V, Q4_0>>,
      .q4_1 = RunStep<V, Int8Kernel<V, Q4_1>>,
      .f32 = RunStep<V, F32Kernel<V>>,
      .copy_rows = CopyRows,
      .quantize_rows = QuantizeRows,
      .transpose16 = Transpose16,
  };
}
