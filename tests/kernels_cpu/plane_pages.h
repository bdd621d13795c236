// SPDX-License-Identifier: Apache-2.0
// A small language for tests of the plane format: make a page, encode it, decode it.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cpu/plane_page.h"
#include "lynx/plane_format.h"

namespace lynx::cpu {

// A page with tiles of its own.
class TestPage {
 public:
  explicit TestPage(const PageShape& shape) : shape_(shape) {
    for (auto& tile : tiles_) tile.assign(size_t{kBlockSize} * shape.head_dim, Bf16{});
  }
  const PageShape& shape() const { return shape_; }
  Bf16& at(int channel, int token) {
    return tiles_[token / kBlockSize]
                 [TileElement(shape_.kind, shape_.head_dim, channel, token % kBlockSize)];
  }
  Bf16 at(int channel, int token) const { return const_cast<TestPage*>(this)->at(channel, token); }
  bool live(int token) const {
    return token >= shape_.num_protected_head &&
           token < shape_.num_tokens - shape_.num_protected_tail;
  }
  // Every slot, those past num_tokens too.
  void FillSlots(const std::function<Bf16(int channel, int token)>& f) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < shape_.head_dim; ++c) at(c, t) = f(c, t);
    }
  }
  PageTiles tiles() const {
    PageTiles t = {};
    for (int b = 0; b < shape_.num_blocks(); ++b) t[b] = tiles_[b].data();
    return t;
  }
  MutablePageTiles mutable_tiles() {
    MutablePageTiles t = {};
    for (int b = 0; b < shape_.num_blocks(); ++b) t[b] = tiles_[b].data();
    return t;
  }
  friend bool operator==(const TestPage& a, const TestPage& b) { return a.tiles_ == b.tiles_; }

 private:
  PageShape shape_;
  std::array<std::vector<Bf16>, kPageBlocks> tiles_;
};

using Planes = std::array<std::vector<std::byte>, kNumPlanes>;

inline Planes EncodePage(const PlaneBlockKernels& kernels, const TestPage& page) {
  const PlaneLayout layout(page.shape());
  Planes planes;
  std::array<size_t, kNumPlanes> bytes = {};
  PlaneEncodeParams params{.shape = page.shape(), .tiles = page.tiles(), .plane_bytes = &bytes};
  for (int p = 0; p < kNumPlanes; ++p) {
    planes[p].assign(layout.max_plane_bytes(p) + kPlaneSlack, std::byte{0xcd});
    params.planes[p] = planes[p].data();
  }
  EncodePlanes(kernels, params);
  for (int p = 0; p < kNumPlanes; ++p) planes[p].resize(bytes[p]);
  return planes;
}

// Decodes the first num_planes planes over what `page` holds.
inline bool DecodePage(const PlaneBlockKernels& kernels, const Planes& planes, int num_planes,
                       TestPage& page) {
  bool ok = false;
  PlaneDecodeParams params{
      .shape = page.shape(), .num_planes = num_planes, .tiles = page.mutable_tiles(), .ok = &ok};
  for (int p = 0; p < num_planes; ++p) {
    params.planes[p] = planes[p].data();
    params.plane_bytes[p] = planes[p].size();
  }
  DecodePlanes(kernels, params);
  return ok;
}

// Smooth channels of different offsets and scales, a few of them large, plus noise.
inline Bf16 CacheLikeValue(std::mt19937& rng, int channel, int token) {
  std::normal_distribution<float> noise(0, 1);
  const bool outlier = channel % 13 == 5;
  const float offset = outlier ? 8.0f + static_cast<float>(channel) : 0.0f;
  const float scale = outlier ? 1.5f : 0.2f + 0.05f * static_cast<float>(channel % 7);
  const float wave = std::sin(0.03f * static_cast<float>(token * (channel % 5 + 1)));
  return ToBf16(offset + scale * (wave + noise(rng)));
}

}  // namespace lynx::cpu
