// SPDX-License-Identifier: Apache-2.0
// The AMX instructions that gemm_tiles-inl.h uses, in plain C++: what Intel's SDM (vol. 2,
// LDTILECFG, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, TILERELEASE) says they do. What raises #UD
// or #GP there ends the process here, with a message. Every thread has its own tile registers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/tile_config.h"

namespace lynx::cpu {

class EmulatedTiles {
 public:
  static void Configure(const TileConfig& config) {
    Check(config.palette == 1 && config.start_row == 0, "palette 1 from row 0");
    for (uint8_t byte : config.reserved) Check(byte == 0, "reserved bytes are zero");
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config.rows[tile], bytes = config.colsb[tile];
      Check(rows <= kTileRows && bytes <= kTileRowBytes, "a tile is at most 16 rows of 64 bytes");
      Check((rows == 0) == (bytes == 0), "a tile has both rows and columns, or neither");
      Check(tile < 8 || rows == 0, "palette 1 has 8 tiles");
    }
    registers() = {};
    registers().config = config;
    registers().in_use = true;
  }
  static void Release() { registers() = {}; }
  static bool in_use() { return registers().in_use; }

  template <int kTile>
  static void Zero() {
    std::memset(Tile<kTile>().bytes, 0, kTileBytes);
  }
  template <int kTile>
  static void Load(const std::byte* base, size_t stride) {
    const Shape tile = Tile<kTile>();
    Zero<kTile>();
    for (int r = 0; r < tile.rows; ++r) {
      std::memcpy(tile.row(r), base + r * stride, tile.row_bytes);
    }
  }
  template <int kTile>
  static void Store(std::byte* base, size_t stride) {
    const Shape tile = Tile<kTile>();
    Check(tile.rows == 1 || stride >= size_t(tile.row_bytes), "rows do not overlap");
    for (int r = 0; r < tile.rows; ++r) {
      std::memcpy(base + r * stride, tile.row(r), tile.row_bytes);
    }
  }
  // Rounds to nearest even with FTZ and DAZ, whatever MXCSR says.
  template <int kC, int kA, int kB>
  static void Multiply() {
    static_assert(kC != kA && kC != kB && kA != kB);
    const Shape c = Tile<kC>(), a = Tile<kA>(), b = Tile<kB>();
    Check(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows &&
              c.row_bytes % 4 == 0,
          "C [m][n] is A [m][k] times B [k][n]");
    ScopedFlushToZero flush_to_zero;
    for (int m = 0; m < c.rows; ++m) {
      float even[kTileRowBytes / 4] = {}, odd[kTileRowBytes / 4] = {};
      for (int k = 0; k < b.rows; ++k) {
        for (int n = 0; n < c.row_bytes / 4; ++n) {
          even[n] = std::fma(a.Bf16(m, 2 * k), b.Bf16(k, 2 * n), even[n]);
          odd[n] = std::fma(a.Bf16(m, 2 * k + 1), b.Bf16(k, 2 * n + 1), odd[n]);
        }
      }
      for (int n = 0; n < c.row_bytes / 4; ++n) {
        float sum;
        std::memcpy(&sum, c.row(m) + 4 * n, sizeof(sum));
        sum += even[n] + odd[n];
        std::memcpy(c.row(m) + 4 * n, &sum, sizeof(sum));
      }
    }
  }

 private:
  struct Registers {
    bool in_use = false;
    TileConfig config;
    std::byte tiles[8][kTileBytes] = {};
  };
  struct Shape {
    int rows;
    int row_bytes;
    std::byte* bytes;
    std::byte* row(int r) const { return bytes + r * kTileRowBytes; }
    float Bf16(int r, int i) const {
      uint16_t half;
      std::memcpy(&half, row(r) + 2 * i, sizeof(half));
      const uint32_t bits = uint32_t{half} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
  };

  static Registers& registers() {
    thread_local Registers registers;
    return registers;
  }
  static void Check(bool ok, const char* rule) {
    if (ok) return;
    std::fprintf(stderr, "AMX fault: %s\n", rule);
    std::abort();
  }
  template <int kTile>
  static Shape Tile() {
    static_assert(kTile >= 0 && kTile < 8);
    Registers& r = registers();
    Check(r.in_use, "tiles are configured before use");
    Check(r.config.rows[kTile] != 0, "a tile in use has rows");
    return {r.config.rows[kTile], r.config.colsb[kTile], r.tiles[kTile]};
  }
};

}  // namespace lynx::cpu
