// SPDX-License-Identifier: Apache-2.0
// The memory operand of LDTILECFG (Intel SDM vol. 2): the shapes of the eight AMX tile registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lynx::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;

// Palette 1. Tiles that Set did not name are off: zero rows of zero bytes.
struct alignas(64) TileConfig {
  // Rows of 64 bytes; rows is 0 .. 16.
  constexpr void Set(int tile, int num_rows) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    colsb[tile] = num_rows > 0 ? kTileRowBytes : 0;
  }

  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t colsb[16] = {};  // bytes of a row; palette 1 has tiles 0 .. 7
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64 && offsetof(TileConfig, colsb) == 16 &&
              offsetof(TileConfig, rows) == 48);

}  // namespace lynx::cpu
