// SPDX-License-Identifier: Apache-2.0
// Byte strings of any length in the memory of KV blocks that the pool lends for it.
//
// Every block lent is cut into pages, 128 for each rank whose memory it lies in. A string takes as
// many pages as it needs, wherever they are, so that nothing but the rest of its last page is lost.
// A block is given back when as many pages are free as it has: what its pages hold moves to the
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
  struct Page {
    BlockId block = -1;
    int index = 0;  // in the block
  };

 public:
  struct Item {
    PrefixKey key;     // whose it is
    size_t bytes = 0;  // its length
    std::vector<Page> pages;
  };
  using Handle = std::list<Item>::iterator;  // valid until the item is erased

  explicit PackedStore(const KvPoolView& pool);
  PackedStore(const PackedStore&) = delete;
  PackedStore& operator=(const PackedStore&) = delete;

  int pages_per_block() const { return pages_per_block_; }
  int PagesFor(size_t bytes) const {
    return static_cast<int>((bytes + page_bytes_ - 1) / page_bytes_);
  }
  int num_free_pages() const { return static_cast<int>(free_.size()); }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_items() const { return static_cast<int>(items_.size()); }
  size_t item_bytes() const { return item_bytes_; }  // of all items, without what pages lose

  // A block to be used from now on; what it holds is lost.
  void Lend(BlockId block);
  // One that is not needed any more, filled with zeros. At least pages_per_block() pages are free.
  BlockId GiveBack();

  // Enters a copy as the newest item below the floor. PagesFor(bytes.size()) pages are free.
  Handle Put(const PrefixKey& key, std::span<const std::byte> bytes);
  // Replaces *bytes by the item's.
  void Get(Handle item, std::vector<std::byte>* bytes) const;
  void Erase(Handle item);
  void Touch(Handle item);                    // makes it the newest
  Handle oldest() { return items_.begin(); }  // there is one
  // From now on Put enters items as older than this one and all that are newer. Erasing it makes
  // the next one the floor.
  void SetFloor(Handle item) { floor_ = item; }
  void ClearFloor() { floor_ = items_.end(); }

 private:
  struct Slot {  // what a page holds: part `part` of an item; null: nothing
    Item* item = nullptr;
    int part = 0;
  };
  struct Lent {
    std::vector<Slot> slots;  // [pages_per_block_]
    int num_used = 0;
  };

  std::byte* Data(const Page& page) const;
  Page TakePage(const Slot& slot);
  void MoveOut(BlockId block, Lent& from);

  const KvPoolView pool_;
  const int pages_per_block_;
  const size_t page_bytes_;
  std::map<BlockId, Lent> blocks_;
  std::vector<Page> free_;
  std::list<Item> items_;  // oldest first
  Handle floor_ = items_.end();
  size_t item_bytes_ = 0;
};

}  // namespace lynx
