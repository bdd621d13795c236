// SPDX-License-Identifier: Apache-2.0
// The lossless planes of a whole block: what the prefix cache packs KV into (kv.resident: exact).
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
  // kInvalidArgument when the KV is not in host memory or the planes cannot hold this head_dim. The
  // back-end and the pool outlive it. clock_ns measures moves.
  static absl::StatusOr<std::unique_ptr<BlockPacker>> Create(const Backend& backend,
                                                             const KvPoolView& pool,
                                                             std::function<int64_t()> clock_ns);

  void Encode(BlockId block, bool is_first, std::vector<std::byte>* bytes) override;
  void Decode(std::span<const std::byte> bytes, bool is_first, BlockId block) override;

  // Blocks that can be encoded or decoded in this time, as far as those before tell; at least 1.
  int MovesWithin(int64_t ns) const;
  int64_t encode_ns() const { return encode_ns_; }  // of all
  int64_t decode_ns() const { return decode_ns_; }

 private:
  BlockPacker(const KvPoolView& pool, std::function<int64_t()> clock_ns)
      : pool_(pool), clock_ns_(std::move(clock_ns)) {}
  KvPage Page(int layer, bool is_first, const BlockId& block) const;
  void Observe(int64_t begin_ns, int64_t* total_ns);

  const KvPoolView pool_;
  const std::function<int64_t()> clock_ns_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<KvPageCodec> pages_;
  std::vector<std::vector<std::byte>> stage_ = std::vector<std::vector<std::byte>>(1);
  LearntMean move_ns_;
  int64_t encode_ns_ = 0, decode_ns_ = 0;
};

}  // namespace lynx
