// SPDX-License-Identifier: Apache-2.0
// Pages of the KV pool as the byte strings that travel: one per stage of the send plan.
//
// A page here is up to 256 tokens of one layer with both kinds and a run of KV heads (all of them,
// or those of one rank). Its stage s holds, in this order:
//
//   u32 lengths (little-endian) of its planes, filled up
//   for kind in (key, value), for each of its heads,
//     for each plane p of the stage (stage_begin(s) <= p < stage_end(s)):
//       the plane's bytes, filled up
//   only in the last stage, only if the pool is float32 and the plan ends lossless:
//     for kind, for head: u16 [num_tokens][head_dim], the low halves, little-endian, token by token
//
// Where the codec has device chunks, *filled up* is by zeros to a multiple of 16 bytes, so that
// planes lie where the device can decode them; elsewhere by nothing. The lengths are in one place
// that the host can fetch.
//
// A float32 pool is coded as its upper halves, which are BF16 patterns; the lower halves travel raw
// at the very end and read as 0 until then. So a lossless plan gives back every bit of either pool.
//
// Multi-plane codecs are told which tokens to protect: the first kNumSinkTokens of the sequence and
// its last kNumRecentTokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/chunk_bytes.h"
#include "codec/scratch_pool.h"
#include "lynx/codec.h"
#include "lynx/device_chunks.h"
#include "lynx/kv_layout.h"
#include "lynx/memory_view.h"
#include "lynx/status.h"

namespace lynx {

// Whether the parts of a stage are filled up. Both sides of a hand-off must agree.
bool FillsUpStages(const Codec& codec);

struct KvPage {
  int layer = 0;
  int first_token = 0;              // position of the page's first token; multiple of 64
  int num_tokens = 0;               // 1 .. kPageTokens
  const BlockId* blocks = nullptr;  // the page's blocks: ceil(num_tokens / 64)
  int num_sequence_tokens = 0;      // of the whole prompt: says where the recent tokens begin
  int first_head = 0;
  int num_heads = 0;

  int num_blocks() const { return (num_tokens + kBlockSize - 1) / kBlockSize; }
};

struct PlaneRange {
  uint8_t begin = 0;
  uint8_t end = 0;  // exclusive
  bool operator==(const PlaneRange&) const = default;
};

// What a stage of a layer's page holds.
struct StageContents {
  uint8_t kinds = 0;                      // bit k: KvKind(k) has planes in it
  std::array<PlaneRange, 2> planes = {};  // by kind
  bool operator==(const StageContents&) const = default;
};

// Immutable after creation but for memory that calls leave to each other; every method may be
// called from any thread. The codec outlives it.
class KvPageCodec {
 public:
  // kInvalidArgument when the codec cannot hold this head_dim, kFailedPrecondition when the plan
  // does not fit the codec and the layout.
  static absl::StatusOr<std::unique_ptr<KvPageCodec>> Create(const Codec& codec,
                                                             const SendPlan& plan,
                                                             const KvLayout& layout);

  int num_stages() const { return plan_.num_stages(); }
  StageContents Contents(int layer, int stage) const;

  // Replaces stages[s] by the bytes of stage s. stages.size() == num_stages().
  void EncodePage(const KvPoolView& pool, const KvPage& page,
                  std::span<std::vector<std::byte>> stages) const;
  // The same into the memory of the codec's device_chunks(), which is not null. False, with the
  // stages unspecified, when there is no room for them or the page has too many heads.
  bool EncodePageOnDevice(const KvPoolView& pool, const KvPage& page,
                          std::span<ChunkBytes> stages) const;

  // Decodes a non-empty prefix of the stages into the page's tokens; other slots of the blocks are
  // left alone. kDataLoss names stage, kind and head when the bytes are not those of such a page;
  // the page's slots then hold unspecified finite numbers. Safe for arbitrary bytes.
  absl::Status DecodePage(const KvPage& page, std::span<const MemoryView> stage_prefix,
                          const KvPoolView& pool) const;

  // A stage of this page is never longer; a peer that announces more is refused.
  size_t MaxStageBytes(const KvPage& page, int stage) const;

 private:
  KvPageCodec(const Codec& codec, const SendPlan& plan, const KvLayout& layout);

  using PoolTiles = std::array<std::byte*, kPageBlocks>;

  size_t FilledUp(size_t bytes) const { return fills_up_ ? PaddedChunkBytes(bytes) : bytes; }
  size_t TableBytes(size_t num_planes) const { return FilledUp(num_planes * sizeof(uint32_t)); }
  PageShape Shape(const KvPage& page, KvKind kind) const;
  PoolTiles Tiles(const KvPoolView& pool, const KvPage& page, KvKind kind, int head) const;
  bool HasLowHalves(int stage) const;
  size_t LowHalvesBytes(const KvPage& page) const;

  // One kind and head of a page, as the codec sees it.
  struct Tensor;
  std::vector<Tensor> Tensors(const KvPoolView& pool, const KvPage& page) const;

  // Calls visit(i, p) for every plane p of tensor i in a stage, in the order of the stage.
  template <typename Visit>
  void ForEachPlane(int stage, std::span<const Tensor> tensors, Visit visit) const;
  int NumPlanes(const KvPage& page, int stage) const;
  // Cuts the low halves off the last stage; empty when there are none.
  absl::StatusOr<std::span<const std::byte>> TakeLowHalves(const KvPage& page,
                                                           std::vector<MemoryView>& stages) const;
  class StagePlanes;  // of a stage that is decoded, in turn
  absl::StatusOr<std::vector<StagePlanes>> OpenStages(const KvPage& page,
                                                      std::span<const MemoryView> stages) const;
  struct TensorPlanes;
  absl::StatusOr<TensorPlanes> TakePlanes(const Tensor& tensor,
                                          std::vector<StagePlanes>& stages) const;

  using Planes = std::vector<std::vector<std::byte>>;  // of a tensor

  const Codec& codec_;
  SendPlan plan_;
  KvLayout layout_;
  bool fills_up_ = false;
  bool lossless_ = false;  // all planes of a lossless codec are in the plan
  mutable ScratchPool<std::vector<Planes>> encoded_;
};

}  // namespace lynx
