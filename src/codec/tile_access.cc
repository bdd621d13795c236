// SPDX-License-Identifier: Apache-2.0
#include "codec/tile_access.h"

namespace lynx {

void ClearPage(const PageShape& shape, const MutablePageTiles& tiles) {
  for (int t = 0; t < shape.num_tokens; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) At(shape, tiles, c, t) = Bf16{};
  }
}

absl::Status WrongPlaneSize(std::string_view codec, int plane, size_t have, size_t want) {
  return absl::DataLossError(absl::StrCat("codec ", std::string(codec), ": plane ", plane, " has ",
                                          have, " bytes, want ", want));
}

}  // namespace lynx
