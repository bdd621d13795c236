// SPDX-License-Identifier: Apache-2.0
// Pages and pools for tests of codecs.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "codec/tile_access.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/codec.h"

namespace lynx {

inline constexpr KvKind kKinds[] = {KvKind::kKey, KvKind::kValue};

inline std::unique_ptr<Backend> TestBackend() { return cpu::CpuBackend::Create({}); }

// A page with tiles of its own. Channels drift slowly, a few are large, all are noisy.
struct CodecPage {
  explicit CodecPage(const PageShape& s) : shape(s) {
    for (int b = 0; b < kPageBlocks; ++b) {
      storage[b].resize(size_t{kBlockSize} * s.head_dim);
      tiles[b] = mutable_tiles[b] = storage[b].data();
    }
  }
  CodecPage(const CodecPage&) = delete;

  void Fill(const std::function<Bf16(int channel, int token)>& f) {
    for (int t = 0; t < shape.num_tokens; ++t) {
      for (int c = 0; c < shape.head_dim; ++c) At(shape, mutable_tiles, c, t) = f(c, t);
    }
  }
  void FillCacheLike(uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> noise(0, 1);
    Fill([&](int c, int t) {
      const float offset = c % 13 == 5 ? 8.0f : 0.0f;
      const float wave = std::sin(0.03f * static_cast<float>(t * (c % 5 + 1)));
      return ToBf16(offset + 0.3f * (wave + noise(rng)));
    });
  }
  Bf16 at(int c, int t) const { return At(shape, tiles, c, t); }

  PageShape shape;
  std::array<std::vector<Bf16>, kPageBlocks> storage;
  PageTiles tiles = {};
  MutablePageTiles mutable_tiles = {};
};

using CodecPlanes = std::vector<std::vector<std::byte>>;

inline CodecPlanes Encode(const Codec& codec, const CodecPage& page) {
  CodecPlanes planes(codec.planes().size());
  codec.Encode(page.shape, page.tiles, planes);
  return planes;
}

inline absl::Status Decode(const Codec& codec, const CodecPlanes& planes, size_t num_planes,
                           CodecPage& page) {
  const std::vector<std::span<const std::byte>> prefix(planes.begin(), planes.begin() + num_planes);
  return codec.Decode(page.shape, prefix, page.mutable_tiles);
}

}  // namespace lynx
