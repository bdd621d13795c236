// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <algorithm>

#include "lynx/status.h"

namespace lynx {

BlockPool::BlockPool(int num_blocks) : blocks_(num_blocks) {
  for (BlockId id = 0; id < num_blocks; ++id) Append(free_, id);
}

std::optional<BlockId> BlockPool::Allocate() {
  if (free_.size == 0 && make_room_ && counts().available() > 0) make_room_();
  const BlockId id = free_.first;
  if (id < 0) return std::nullopt;
  Remove(free_, id);
  num_ever_used_ = std::max(num_ever_used_, id + 1);
  blocks_[id].num_requests = 1;
  ++num_request_owned_;
  return id;
}

void BlockPool::Add(BlockId id, int Block::*owners) {
  Block& block = blocks_[id];
  if (block.num_owners() == 0) Remove(ListOf(block), id);
  const bool was_request = block.num_requests > 0;
  ++(block.*owners);
  if (!was_request && block.num_requests > 0) ++num_request_owned_;
}

void BlockPool::Release(BlockId id, int Block::*owners) {
  Block& block = blocks_[id];
  LYNX_CHECK(block.*owners > 0);
  const bool was_request = block.num_requests > 0;
  --(block.*owners);
  if (was_request && block.num_requests == 0) --num_request_owned_;
  if (block.num_owners() == 0) Append(ListOf(block), id);
}

BlockCounts BlockPool::counts() const {
  BlockCounts counts{.total = static_cast<int>(blocks_.size()),
                     .free = free_.size,
                     .cached = cached_.size,
                     .request = num_request_owned_,
                     .packed = num_lent_};
  counts.transfer = counts.total - counts.free - counts.cached - counts.request - counts.packed;
  return counts;
}

void BlockPool::Remember(BlockId id) {
  Block& block = blocks_[id];
  if (block.remembered) return;
  const bool listed = block.num_owners() == 0;
  if (listed) Remove(free_, id);
  block.remembered = true;
  if (listed) Append(cached_, id);
}

void BlockPool::Forget(BlockId id) {
  Block& block = blocks_[id];
  if (!block.remembered) return;
  const bool listed = block.num_owners() == 0;
  if (listed) Remove(cached_, id);
  block.remembered = false;
  if (listed) Append(free_, id);
}

std::optional<BlockId> BlockPool::oldest_cached() const {
  return cached_.size > 0 ? std::optional(cached_.first) : std::nullopt;
}

void BlockPool::Lend(BlockId id) {
  num_ever_used_ = std::max(num_ever_used_, id + 1);
  Add(id, &Block::num_loans);
  ++num_lent_;
}

void BlockPool::TakeBack(BlockId id) {
  Release(id, &Block::num_loans);
  --num_lent_;
}

void BlockPool::Append(List& list, BlockId id) {
  Block& block = blocks_[id];
  block.previous = list.last;
  block.next = -1;
  (list.last < 0 ? list.first : blocks_[list.last].next) = id;
  list.last = id;
  ++list.size;
}

void BlockPool::Remove(List& list, BlockId id) {
  Block& block = blocks_[id];
  (block.previous < 0 ? list.first : blocks_[block.previous].next) = block.next;
  (block.next < 0 ? list.last : blocks_[block.next].previous) = block.previous;
  --list.size;
}

}  // namespace lynx
