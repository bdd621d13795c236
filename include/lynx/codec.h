// SPDX-License-Identifier: Apache-2.0
// The codec seam: how KV becomes bytes and comes back.
//
// A codec turns a *page* (up to 256 tokens of one layer, one kind, one KV head) into an ordered
// list of planes. Decoding any non-empty prefix of the planes gives a valid, ever better page; a
// lossless codec's last plane gives back every bit. Baselines are codecs with one plane, the
// paper's has two. Codecs know no network: what travels first is a SendPlan.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lynx/kv_layout.h"
#include "lynx/status.h"

namespace lynx {

class Backend;
class DeviceChunks;

inline constexpr int kPageBlocks = 4;
inline constexpr int kPageTokens = kPageBlocks * kBlockSize;

// Attention sinks and the most recent tokens travel as raw BF16 in the first plane (codec: planes).
inline constexpr int kNumSinkTokens = 16;
inline constexpr int kNumRecentTokens = 64;

struct PageShape {
  KvKind kind = KvKind::kKey;
  int head_dim = 0;    // multiple of 16, at most 256
  int num_tokens = 0;  // 1 .. 256; blocks = ceil(num_tokens / 64), only the last may be partial
  int num_protected_head = 0;  // the first tokens of the page that are sent raw
  int num_protected_tail = 0;  // the last tokens of the page that are sent raw
  // Where the page stands in the model, for codecs that grade their bins by depth (cachegen).
  int layer = 0;
  int num_layers = 0;
  int num_blocks() const { return (num_tokens + kBlockSize - 1) / kBlockSize; }
};

using PageTiles = std::array<const Bf16*, kPageBlocks>;  // tiles in the layout of kv_layout.h
using MutablePageTiles = std::array<Bf16*, kPageBlocks>;

struct PageToEncode {
  PageShape shape;
  PageTiles tiles;
  std::span<std::vector<std::byte>> planes;  // as for Encode
};
struct PageToDecode {
  PageShape shape;
  std::span<const std::span<const std::byte>> planes;  // as for Decode
  MutablePageTiles tiles;
  // [planes.size()] or empty: planes that lie in the memory of the codec's device_chunks().
  std::span<const bool> on_device = {};
};

struct PlaneSpec {
  std::string_view name;  // "anchor2", "bit3" … stable, appears in metrics
  int bits = 0;           // nominal code bits per element (0 = variable)
};

// Immutable after creation; every method may be called from any thread.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;  // the value of kv.codec
  virtual std::span<const PlaneSpec> planes() const = 0;
  // True when all planes together give back every bit of the page.
  virtual bool lossless() const = 0;

  // Appends the bytes of plane p to planes[p]. planes.size() == planes().size().
  virtual void Encode(const PageShape& shape, const PageTiles& tiles,
                      std::span<std::vector<std::byte>> planes) const = 0;

  // Decodes the given prefix of planes (at least one) into the tiles; slots past num_tokens are
  // left alone. kDataLoss when the bytes cannot have come from Encode with this shape; the tiles'
  // contents are then unspecified but finite. Never reads out of bounds whatever the bytes are.
  virtual absl::Status Decode(const PageShape& shape,
                              std::span<const std::span<const std::byte>> planes,
                              const MutablePageTiles& tiles) const = 0;

  // The same for several pages of one layer at once, which devices want: tiles are in the memory
  // of the back-end that the codec was made for. DecodePages stops at the first page that fails
  // and stores its index.
  virtual void EncodePages(std::span<const PageToEncode> pages) const;
  virtual absl::Status DecodePages(std::span<const PageToDecode> pages, size_t* bad_page) const;

  // What keeps planes in the memory of the codec's device. Null: its planes are the host's. Not
  // null: its planes are those of lynx/plane_format.h.
  virtual DeviceChunks* device_chunks() const { return nullptr; }

  // Upper bound of plane p's bytes for this shape; a peer that announces more is refused.
  virtual size_t MaxPlaneBytes(const PageShape& shape, int plane) const = 0;
};

// One of CodecNames() (docs/codecs.md). kInvalidArgument lists them. The back-end outlives the
// codec.
absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(std::string_view name, const Backend& backend);
std::span<const std::string_view> CodecNames();

// How the planes of a codec are cut into stages, which is the order they travel in. Stage 0 is the
// anchor. Codecs with one plane have one stage. The width table says how many leading planes the
// anchor holds for each (layer, kind); `planes` falls back to 4 bits for keys and 2 for values.
struct SendPlan {
  // [num_stages]: one past the last plane of the stage, for each (layer * 2 + kind).
  std::vector<std::vector<int>> plane_end;
  int num_stages() const { return static_cast<int>(plane_end.size()); }
  int stage_begin(int stage, int layer, KvKind kind) const {
    return stage == 0 ? 0 : plane_end[stage - 1][layer * 2 + int(kind)];
  }
  int stage_end(int stage, int layer, KvKind kind) const {
    return plane_end[stage][layer * 2 + int(kind)];
  }
};

// exact_target: false leaves out the last plane of a lossless multi-plane codec (kv.target: 8bit).
SendPlan DefaultSendPlan(const Codec& codec, int num_layers, bool exact_target);

}  // namespace lynx
