// SPDX-License-Identifier: Apache-2.0
// Who owns which block of the KV pool. Bookkeeping only; touches no KV memory.
//
// A block has two kinds of owners: requests (several may share one through the prefix cache) and
// transfers (bytes of it are being sent, received or decoded). It can be given out again only when
// it has neither. A block without owners whose content the prefix cache remembers stays findable
// until its memory is needed, least recently used first. The prefix cache may also borrow blocks,
// to keep more in them than fits as it is (kv/packed_store.h); it gives them back on demand.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lynx/types.h"

namespace lynx {

// Blocks that hold so many tokens.
constexpr int BlocksFor(int num_tokens) { return (num_tokens + kBlockSize - 1) / kBlockSize; }

struct BlockCounts {
  int total = 0;
  int free = 0;      // no owner, nothing remembered
  int cached = 0;    // no owner, remembered by the prefix cache
  int request = 0;   // at least one request owns it
  int transfer = 0;  // only transfers own it
  int packed = 0;    // lent to the prefix cache
  int available() const { return free + cached + packed; }
};

// One thread.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  // A block owned by one request, or nothing when every block has an owner.
  std::optional<BlockId> Allocate();

  void AddRequest(BlockId block) { Add(block, &Block::num_requests); }
  void ReleaseRequest(BlockId block) { Release(block, &Block::num_requests); }
  void AddTransfer(BlockId block) { Add(block, &Block::num_transfers); }
  void ReleaseTransfer(BlockId block) { Release(block, &Block::num_transfers); }

  bool owned(BlockId block) const { return blocks_[block].num_owners() > 0; }
  BlockCounts counts() const;
  // Blocks that may have been given out at some time: those below this number.
  int num_ever_used() const { return num_ever_used_; }

  // For the prefix cache: its content is (no longer) worth keeping.
  void Remember(BlockId block);
  void Forget(BlockId block);
  // The remembered block without owners that was used least recently.
  std::optional<BlockId> oldest_cached() const;
  // A free block is lent, or comes back.
  void Lend(BlockId block);
  void TakeBack(BlockId block);
  // Runs when a block is wanted and none is free. Makes at least one free, by Forget or TakeBack,
  // while there are cached or packed ones.
  void set_make_room(std::function<void()> make_room) { make_room_ = std::move(make_room); }

 private:
  struct Block {
    int num_requests = 0;
    int num_transfers = 0;
    int num_loans = 0;
    bool remembered = false;
    BlockId previous = -1, next = -1;  // neighbours in the list it is in, if it has no owner
    int num_owners() const { return num_requests + num_transfers + num_loans; }
  };
  // Blocks without owners, oldest first.
  struct List {
    BlockId first = -1, last = -1;
    int size = 0;
  };

  void Add(BlockId block, int Block::*owners);
  void Release(BlockId block, int Block::*owners);
  List& ListOf(const Block& block) { return block.remembered ? cached_ : free_; }
  void Append(List& list, BlockId id);
  void Remove(List& list, BlockId id);

  std::vector<Block> blocks_;
  List free_, cached_;
  int num_request_owned_ = 0;
  int num_ever_used_ = 0;
  int num_lent_ = 0;
  std::function<void()> make_room_;
};

}  // namespace lynx
