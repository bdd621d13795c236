// SPDX-License-Identifier: Apache-2.0
// Packed KV (kv.resident: exact, 8bit): how much of a step encoding and decoding blocks may take.
//
// While answers run, moves get an eighth of the ITL target in a step: then blocks that are needed
// are taken from the oldest packed KV instead of being encoded, and a request whose packed prefix
// takes longer to decode is admitted when a few steps have done so. A 32nd of the pool is kept free
// by encoding ahead, so that such a step seldom finds nothing; not in 8 bits, where what is packed
// when a prompt comes back shows in its answer, which idle time should not decide.
#include <algorithm>

#include "engine/engine_impl.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int kShareOfTarget = 8;
constexpr int kShareFree = 32;

}  // namespace

// Moves of a step in which answers go on; also of what may be done ahead in any step.
int EngineImpl::MovesWithinTarget() const {
  return packer_->MovesWithin(options_.itl_target_ms * kNsPerMs / kShareOfTarget);
}

void EngineImpl::AllowMoves() {
  if (packer_ == nullptr) return;
  const bool bounded = num_decoding_ > 0 && options_.itl_target_ms > 0;
  prefix_cache_.AllowMoves(bounded ? MovesWithinTarget() : PrefixCache::kUnlimited);
}

bool EngineImpl::PackAhead() {
  if (packer_ == nullptr || !packer_->lossless()) return false;
  return prefix_cache_.PackAhead(options_.num_kv_blocks / kShareFree,
                                 std::min(MovesWithinTarget(), prefix_cache_.num_moves()));
}

// Whether a request that the scheduler has admitted has to wait a step for packed blocks of its
// prefix; decodes those that this step has time for. Where new blocks have taken all moves it
// decodes one nevertheless, so that it does not wait as long as answers need blocks.
bool EngineImpl::UnpacksFirst(const Admission& admission) {
  const int num_packed = admission.match.num_packed;
  if (num_packed == 0 || num_packed <= prefix_cache_.num_moves()) return false;
  const int num_left = prefix_cache_.num_moves();
  const int num_moves = num_left == 0 ? 1 : std::max(0, num_left);
  const PrefixMatch taken = prefix_cache_.Take(admission.match, num_moves);
  for (auto b = taken.blocks.rbegin(); b != taken.blocks.rend(); ++b) pool_.ReleaseRequest(*b);
  return true;
}

void EngineImpl::UpdatePackingStats() {
  if (packer_ == nullptr) return;
  const PackingStats& packing = prefix_cache_.packing();
  counters_.blocks_packed = pool_.counts().packed;
  counters_.packed_tokens = packing.num_packed * kBlockSize;
  counters_.packed_bytes = packing.packed_bytes;
  counters_.encoded_tokens = packing.num_encoded * kBlockSize;
  counters_.restored_tokens = packing.num_restored * kBlockSize;
  counters_.pack_ns = packer_->encode_ns();
  counters_.unpack_ns = packer_->decode_ns();
}

}  // namespace lynx
