// SPDX-License-Identifier: Apache-2.0
// Byte strings of any length in the memory of KV blocks that the pool lends for it.
//
// Every block lent is cut into units, 128 for each rank whose memory it lies in. A string takes as
// many units as it needs, wherever they are, so that nothing but the rest of its last unit is lost.
// A block is given back when as many units are free as it has: what its units hold moves to the
// free ones of the other blocks.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <span>
#include <vector>

#include "kv/prefix_key.h"
#include "lynx/kv_layout.h"

namespace lynx {

// One thread. The pool's memory outlives it, is the host's, and is touched by nobody else as far as
// it was lent.
class PackedStore {
 private:
  struct Unit {
    BlockId block = -1;
    int index = 0;  // in the block
  };

 public:
  struct Item {
    PrefixKey key;     // whose it is
    size_t bytes = 0;  // its length
    std::vector<Unit> units;
  };
  using Handle = std::list<Item>::iterator;  // valid until the item is erased

  explicit PackedStore(const KvPoolView& pool);
  PackedStore(const PackedStore&) = delete;
  PackedStore& operator=(const PackedStore&) = delete;

  int units_per_block() const { return units_per_block_; }
  int UnitsFor(size_t bytes) const {
    return static_cast<int>((bytes + unit_bytes_ - 1) / unit_bytes_);
  }
  int num_free_units() const { return static_cast<int>(free_.size()); }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_items() const { return static_cast<int>(items_.size()); }
  size_t item_bytes() const { return item_bytes_; }  // of all items, without what units lose

  // A block to be used from now on; what it holds is lost.
  void Lend(BlockId block);
  // One that is not needed any more, filled with zeros. At least units_per_block() units are free.
  BlockId GiveBack();

  // Enters a copy as the newest item below the floor. UnitsFor(bytes.size()) units are free.
  Handle Put(const PrefixKey& key, std::span<const std::byte> bytes);
  // Replaces *bytes by the item's.
  void Get(Handle item, std::vector<std::byte>* bytes) const;
  void Erase(Handle item);
  void Touch(Handle item);                    // makes it the newest
  void Refresh(Handle item);                  // makes it as new as Put would now
  Handle oldest() { return items_.begin(); }  // there is one
  // From now on Put enters items as older than this one and all that are newer. Erasing it, or
  // making it older, makes the next one the floor.
  void SetFloor(Handle item) { floor_ = item; }
  void ClearFloor() { floor_ = items_.end(); }

 private:
  struct Part {  // what a unit holds: the index-th part of an item; null: nothing
    Item* item = nullptr;
    int index = 0;
  };
  struct Lent {
    std::vector<Part> parts;  // [units_per_block_]
    int num_used = 0;
  };

  std::byte* Data(const Unit& unit) const;
  Unit TakeUnit(const Part& part);
  void MoveOut(BlockId block, Lent& from);

  const KvPoolView pool_;
  const int units_per_block_;
  const size_t unit_bytes_;
  std::map<BlockId, Lent> blocks_;
  std::vector<Unit> free_;
  std::list<Item> items_;  // oldest first
  Handle floor_ = items_.end();
  size_t item_bytes_ = 0;
};

}  // namespace lynx
