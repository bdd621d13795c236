// SPDX-License-Identifier: Apache-2.0
// The leading planes of a whole block: what the prefix cache packs KV into (kv.resident: exact or
// 8bit).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "codec/kv_page_codec.h"
#include "kv/block_codec.h"
#include "speculation/learnt_mean.h"

namespace lynx {

class Backend;

// A block is encoded as one page of 64 tokens for each layer; the bytes are
//
//   u32 lengths [num_layers], then the layers' pages in one stage each (codec/kv_page_codec.h)
//
// The first block of a sequence keeps the attention sinks raw, as a hand-off does.
class BlockPacker final : public BlockCodec {
 public:
  // num_planes: kNumPlanes, or fewer (kExactPlane: 8 bits), which lose bits. kInvalidArgument when
  // the KV is not in host memory or the planes cannot hold this head_dim. The back-end and the pool
  // outlive it. clock_ns measures moves.
  static absl::StatusOr<std::unique_ptr<BlockPacker>> Create(const Backend& backend,
                                                             const KvPoolView& pool, int num_planes,
                                                             std::function<int64_t()> clock_ns);

  bool lossless() const override { return lossless_; }
  void Encode(BlockId block, bool is_first, std::vector<std::byte>* bytes) override;
  void Decode(std::span<const std::byte> bytes, bool is_first, BlockId block) override;

  // Blocks that can be encoded or decoded in this time, at least 1: as far as those before tell if
  // lossless. Otherwise by a rate that is the same everywhere, because what is left out shows in
  // answers.
  int MovesWithin(int64_t ns) const;
  int64_t encode_ns() const { return encode_ns_; }  // of all
  int64_t decode_ns() const { return decode_ns_; }

 private:
  BlockPacker(const KvPoolView& pool, bool lossless, std::function<int64_t()> clock_ns)
      : pool_(pool), lossless_(lossless), clock_ns_(std::move(clock_ns)) {}
  KvPage Page(int layer, bool is_first, const BlockId& block) const;
  void Observe(int64_t begin_ns, int64_t* total_ns);

  const KvPoolView pool_;
  const bool lossless_;
  const std::function<int64_t()> clock_ns_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<KvPageCodec> pages_;
  std::vector<std::vector<std::byte>> stage_ = std::vector<std::vector<std::byte>>(1);
  LearntMean move_ns_;
  int64_t encode_ns_ = 0, decode_ns_ = 0;
};

}  // namespace lynx
