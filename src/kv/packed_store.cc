// SPDX-License-Identifier: Apache-2.0
#include "kv/packed_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lynx/status.h"

namespace lynx {
namespace {

constexpr int kPagesPerRank = 128;

}  // namespace

PackedStore::PackedStore(const KvPoolView& pool)
    : pool_(pool),
      pages_per_block_(kPagesPerRank * pool.num_shards()),
      page_bytes_(pool.layout.block_bytes() / pages_per_block_) {
  LYNX_CHECK(page_bytes_ * pages_per_block_ == pool.layout.block_bytes());
}

std::byte* PackedStore::Data(const Page& page) const {
  const KvPoolView part = pool_.shard(page.index / kPagesPerRank);
  return part.base + size_t(page.block) * part.layout.block_bytes() +
         (page.index % kPagesPerRank) * page_bytes_;
}

void PackedStore::Lend(BlockId block) {
  Lent& lent = blocks_[block];
  LYNX_CHECK(lent.slots.empty());
  lent.slots.resize(pages_per_block_);
  // The last one is taken first.
  for (int i = pages_per_block_ - 1; i >= 0; --i) free_.push_back({block, i});
}

BlockId PackedStore::GiveBack() {
  LYNX_CHECK(num_free_pages() >= pages_per_block_);
  const auto emptiest = std::min_element(
      blocks_.begin(), blocks_.end(),
      [](const auto& a, const auto& b) { return a.second.num_used < b.second.num_used; });
  const BlockId block = emptiest->first;
  std::erase_if(free_, [block](const Page& page) { return page.block == block; });
  MoveOut(block, emptiest->second);
  blocks_.erase(emptiest);
  // Attention wants finite numbers even where it does not look.
  for (int i = 0; i < pages_per_block_; ++i) std::memset(Data({block, i}), 0, page_bytes_);
  return block;
}

void PackedStore::MoveOut(BlockId block, Lent& from) {
  for (int i = 0; i < pages_per_block_; ++i) {
    const Slot slot = from.slots[i];
    if (slot.item == nullptr) continue;
    const Page to = TakePage(slot);
    std::memcpy(Data(to), Data({block, i}), page_bytes_);
    slot.item->pages[slot.part] = to;
  }
}

PackedStore::Page PackedStore::TakePage(const Slot& slot) {
  LYNX_CHECK(!free_.empty());
  const Page page = free_.back();
  free_.pop_back();
  Lent& lent = blocks_.at(page.block);
  lent.slots[page.index] = slot;
  ++lent.num_used;
  return page;
}

PackedStore::Handle PackedStore::Put(const PrefixKey& key, std::span<const std::byte> bytes) {
  const Handle item = items_.insert(floor_, {.key = key, .bytes = bytes.size(), .pages = {}});
  for (int part = 0; part < PagesFor(bytes.size()); ++part) {
    item->pages.push_back(TakePage({&*item, part}));
    const auto rest = bytes.subspan(part * page_bytes_);
    std::memcpy(Data(item->pages.back()), rest.data(), std::min(rest.size(), page_bytes_));
  }
  item_bytes_ += item->bytes;
  return item;
}

void PackedStore::Get(Handle item, std::vector<std::byte>* bytes) const {
  bytes->resize(item->bytes);
  std::span<std::byte> rest = *bytes;
  for (const Page& page : item->pages) {
    const size_t size = std::min(rest.size(), page_bytes_);
    std::memcpy(rest.data(), Data(page), size);
    rest = rest.subspan(size);
  }
}

void PackedStore::Erase(Handle item) {
  for (const Page& page : item->pages) {
    Lent& lent = blocks_.at(page.block);
    lent.slots[page.index] = {};
    --lent.num_used;
    free_.push_back(page);
  }
  item_bytes_ -= item->bytes;
  if (floor_ == item) ++floor_;
  items_.erase(item);
}

void PackedStore::Touch(Handle item) { items_.splice(items_.end(), items_, item); }

}  // namespace lynx
