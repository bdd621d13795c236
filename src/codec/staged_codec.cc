// SPDX-License-Identifier: Apache-2.0
// A codec that works on the host, over a pool in a device's memory: whole tiles go through host
// memory.
#include <utility>

#include "codec/codecs.h"
#include "lynx/backend.h"

namespace lynx {
namespace {

class StagedCodec final : public Codec {
 public:
  StagedCodec(std::unique_ptr<Codec> codec, const Backend& backend)
      : codec_(std::move(codec)), backend_(backend) {}

  std::string_view name() const override { return codec_->name(); }
  std::span<const PlaneSpec> planes() const override { return codec_->planes(); }
  bool lossless() const override { return codec_->lossless(); }
  size_t MaxPlaneBytes(const PageShape& shape, int plane) const override {
    return codec_->MaxPlaneBytes(shape, plane);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    std::vector<Bf16> copy = Read(shape, tiles.data());
    PageTiles copies = {};
    for (int b = 0; b < shape.num_blocks(); ++b) copies[b] = copy.data() + b * TileSize(shape);
    codec_->Encode(shape, copies, planes);
  }

  // Slots that the page does not cover go back as they were.
  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    std::vector<Bf16> copy = Read(shape, tiles.data());
    MutablePageTiles copies = {};
    std::array<std::byte*, kPageBlocks> to = {};
    for (int b = 0; b < shape.num_blocks(); ++b) {
      copies[b] = copy.data() + b * TileSize(shape);
      to[b] = reinterpret_cast<std::byte*>(tiles[b]);
    }
    const absl::Status status = codec_->Decode(shape, planes, copies);
    backend_.WriteTiles({to.data(), size_t(shape.num_blocks())}, TileSize(shape) * sizeof(Bf16),
                        reinterpret_cast<const std::byte*>(copy.data()));
    return status;
  }

 private:
  static size_t TileSize(const PageShape& shape) { return size_t{kBlockSize} * shape.head_dim; }

  // [num_blocks] tiles
  std::vector<Bf16> Read(const PageShape& shape, const Bf16* const* tiles) const {
    std::vector<Bf16> copy(shape.num_blocks() * TileSize(shape));
    std::array<const std::byte*, kPageBlocks> from = {};
    for (int b = 0; b < shape.num_blocks(); ++b) {
      from[b] = reinterpret_cast<const std::byte*>(tiles[b]);
    }
    backend_.ReadTiles(shape.layer, {from.data(), size_t(shape.num_blocks())},
                       TileSize(shape) * sizeof(Bf16), reinterpret_cast<std::byte*>(copy.data()));
    return copy;
  }

  const std::unique_ptr<Codec> codec_;
  const Backend& backend_;
};

}  // namespace

std::unique_ptr<Codec> MakeStagedCodec(std::unique_ptr<Codec> codec, const Backend& backend) {
  return std::make_unique<StagedCodec>(std::move(codec), backend);
}

}  // namespace lynx
