// SPDX-License-Identifier: Apache-2.0
// The transfers' side of block ownership: which blocks an attempt may still read or write.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace lynx {

// Engine thread. An attempt's blocks stay owned from Pin until its terminal event, whatever
// happens to the request meanwhile.
class TransferPins {
 public:
  explicit TransferPins(BlockPool& pool) : pool_(pool) {}

  void Pin(AttemptId attempt, std::span<const BlockId> blocks) {
    for (BlockId b : blocks) pool_.AddTransfer(b);
    pins_[attempt].assign(blocks.begin(), blocks.end());
  }
  // Does nothing for an attempt that holds no pins (any more).
  void Release(AttemptId attempt) {
    const auto it = pins_.find(attempt);
    if (it == pins_.end()) return;
    for (auto b = it->second.rbegin(); b != it->second.rend(); ++b) pool_.ReleaseTransfer(*b);
    pins_.erase(it);
  }
  bool Holds(AttemptId attempt) const { return pins_.contains(attempt); }
  bool empty() const { return pins_.empty(); }

 private:
  BlockPool& pool_;
  std::map<AttemptId, std::vector<BlockId>> pins_;
};

}  // namespace lynx
