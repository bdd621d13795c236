// SPDX-License-Identifier: Apache-2.0
#include "codec/tile_access.h"

#include <cstring>

namespace lynx {

void ReadToken(const PageShape& shape, const PageTiles& tiles, int token, Bf16* channels) {
  const Bf16* first = &At(shape, tiles, 0, token);
  if (shape.kind == KvKind::kValue) {
    std::memcpy(channels, first, shape.head_dim * sizeof(Bf16));
  } else {
    for (int c = 0; c < shape.head_dim; ++c) channels[c] = first[c * kBlockSize];
  }
}

void WriteToken(const PageShape& shape, const MutablePageTiles& tiles, int token,
                const Bf16* channels) {
  Bf16* first = &At(shape, tiles, 0, token);
  if (shape.kind == KvKind::kValue) {
    std::memcpy(first, channels, shape.head_dim * sizeof(Bf16));
  } else {
    for (int c = 0; c < shape.head_dim; ++c) first[c * kBlockSize] = channels[c];
  }
}

absl::Status WrongPlaneSize(std::string_view codec, int plane, size_t have, size_t want) {
  return absl::DataLossError(absl::StrCat("codec ", std::string(codec), ": plane ", plane, " has ",
                                          have, " bytes, want ", want));
}

absl::Status WrongNumber(std::string_view codec, std::string_view what) {
  return absl::DataLossError(absl::StrCat("codec ", std::string(codec), ": ", std::string(what)));
}

}  // namespace lynx
