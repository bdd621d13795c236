// SPDX-License-Identifier: Apache-2.0
// The BF16 product of gemm_kernels.h on AMX tiles. Tiles names the instructions: those of the
// processor (gemm_amx.cc), or an emulation of them (tests/kernels_cpu/emulated_tiles.h).
//
// A micro-tile is up to 32 rows by two panels. All eight tile registers take part:
//
//                 B 6   B 7     B  a tile of a panel as it lies in memory: 16 pairs of inputs by
//          A 4    C 0   C 1        16 outputs
//          A 5    C 2   C 3     A  up to 16 rows by 32 inputs; C their float32 sums
//
// so four loads feed four products, each of which adds even + odd to its sums as docs/numerics.md
// says. Rows of a tile are independent: fewer rows are a shorter A and C. With up to 16 rows the
// lower half is off.
//
// Included, after gemm_convert-inl.h, inside an anonymous namespace of lynx::cpu.

// Activations as A wants them, BF16: [block of 32 inputs][row][32]. They fill half of out.
inline void RoundRowsForTiles(const ConvertParams& p, float* out) {
  uint16_t* const rounded = reinterpret_cast<uint16_t*>(out);
  ForEachBlock(p, [rounded](const float* in, int64_t index) {
    uint16_t* to = rounded + index * kBlockInputs;
    for (int i = 0; i < kBlockInputs; ++i) to[i] = static_cast<uint16_t>(Bf16Bits(in[i]) >> 16);
  });
}

inline TileConfig ConfigForRows(int rows) {
  const int upper = std::min(rows, kTileRows), lower = rows - upper;
  TileConfig config;
  for (int tile : {0, 1, 4}) config.Set(tile, upper);
  for (int tile : {2, 3, 5}) config.Set(tile, lower);
  for (int tile : {6, 7}) config.Set(tile, kTileRows);
  return config;
}

template <typename Tiles, bool kLower, int kPanels>
void MicroTile(const GemmStep& s, int panel) {
  constexpr bool kRight = kPanels == 2;
  Tiles::template Zero<0>();
  if constexpr (kRight) Tiles::template Zero<1>();
  if constexpr (kLower) Tiles::template Zero<2>();
  if constexpr (kLower && kRight) Tiles::template Zero<3>();
  const std::byte* a = reinterpret_cast<const std::byte*>(s.x);
  const std::byte* b = s.weights + panel * s.weight_stride;
  for (int64_t block = 0; block < s.blocks; ++block) {
    if (s.prefetch_blocks > 0) {
      const std::byte* ahead = b + BlocksAhead(s, block, kPanels) * kTileBytes;
      for (int i = 0; i < kTileBytes; i += kLineBytes) {
        __builtin_prefetch(ahead + i);
        if constexpr (kRight) __builtin_prefetch(ahead + s.weight_stride + i);
      }
    }
    Tiles::template Load<6>(b, kTileRowBytes);
    Tiles::template Load<4>(a, kTileRowBytes);
    Tiles::template Multiply<0, 4, 6>();
    if constexpr (kRight) {
      Tiles::template Load<7>(b + s.weight_stride, kTileRowBytes);
      Tiles::template Multiply<1, 4, 7>();
    }
    if constexpr (kLower) {
      Tiles::template Load<5>(a + kTileBytes, kTileRowBytes);
      Tiles::template Multiply<2, 5, 6>();
      if constexpr (kRight) Tiles::template Multiply<3, 5, 7>();
    }
    a += s.rows * kTileRowBytes;
    b += kTileBytes;
  }
  const size_t stride = s.panels * kTileRowBytes;
  std::byte* c = reinterpret_cast<std::byte*>(s.acc) + panel * kTileRowBytes;
  Tiles::template Store<0>(c, stride);
  if constexpr (kRight) Tiles::template Store<1>(c + kTileRowBytes, stride);
  if constexpr (kLower) {
    c += kTileRows * stride;
    Tiles::template Store<2>(c, stride);
    if constexpr (kRight) Tiles::template Store<3>(c + kTileRowBytes, stride);
  }
}

template <typename Tiles, bool kLower>
void MultiplyPanels(const GemmStep& s) {
  int panel = 0;
  for (; panel + 2 <= s.panels; panel += 2) MicroTile<Tiles, kLower, 2>(s, panel);
  if (panel < s.panels) MicroTile<Tiles, kLower, 1>(s, panel);
}

template <typename Tiles>
void MultiplyOnTiles(const GemmStep& s) {
  if (*s.tile_rows != s.rows) {
    Tiles::Configure(ConfigForRows(s.rows));
    *s.tile_rows = s.rows;
  }
  if (s.rows > kTileRows) {
    MultiplyPanels<Tiles, true>(s);
  } else {
    MultiplyPanels<Tiles, false>(s);
  }
}

// The rows of a slab are read once for every two panels: a slab of 1 MiB leaves half of the L2
// cache of a processor with AMX (2 MiB) to the weights.
template <typename Tiles>
constexpr Bf16Kernels MakeTileKernels() {
  return {.max_rows = 2 * kTileRows,
          .row_unit = kTileRows,
          .max_slab_inputs = (1 << 20) / sizeof(uint16_t),
          .multiply = MultiplyOnTiles<Tiles>,
          .round_rows = RoundRowsForTiles,
          .release = Tiles::Release};
}
