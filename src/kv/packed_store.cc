// SPDX-License-Identifier: Apache-2.0
#include "kv/packed_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lynx/status.h"

namespace lynx {
namespace {

constexpr int kUnitsPerRank = 128;

}  // namespace

PackedStore::PackedStore(const KvPoolView& pool)
    : pool_(pool),
      units_per_block_(kUnitsPerRank * pool.num_shards()),
      unit_bytes_(pool.layout.block_bytes() / units_per_block_) {
  LYNX_CHECK(unit_bytes_ * units_per_block_ == pool.layout.block_bytes());
}

std::byte* PackedStore::Data(const Unit& unit) const {
  const KvPoolView rank = pool_.shard(unit.index / kUnitsPerRank);
  return rank.base + size_t(unit.block) * rank.layout.block_bytes() +
         (unit.index % kUnitsPerRank) * unit_bytes_;
}

void PackedStore::Lend(BlockId block) {
  Lent& lent = blocks_[block];
  LYNX_CHECK(lent.parts.empty());
  lent.parts.resize(units_per_block_);
  // The last one is taken first.
  for (int i = units_per_block_ - 1; i >= 0; --i) free_.push_back({block, i});
}

BlockId PackedStore::GiveBack() {
  LYNX_CHECK(num_free_units() >= units_per_block_);
  const auto emptiest = std::min_element(
      blocks_.begin(), blocks_.end(),
      [](const auto& a, const auto& b) { return a.second.num_used < b.second.num_used; });
  const BlockId block = emptiest->first;
  std::erase_if(free_, [block](const Unit& unit) { return unit.block == block; });
  MoveOut(block, emptiest->second);
  blocks_.erase(emptiest);
  // Attention wants finite numbers even where it does not look.
  for (int i = 0; i < units_per_block_; ++i) std::memset(Data({block, i}), 0, unit_bytes_);
  return block;
}

void PackedStore::MoveOut(BlockId block, Lent& from) {
  for (int i = 0; i < units_per_block_; ++i) {
    const Part part = from.parts[i];
    if (part.item == nullptr) continue;
    const Unit to = TakeUnit(part);
    std::memcpy(Data(to), Data({block, i}), unit_bytes_);
    part.item->units[part.index] = to;
  }
}

PackedStore::Unit PackedStore::TakeUnit(const Part& part) {
  LYNX_CHECK(!free_.empty());
  const Unit unit = free_.back();
  free_.pop_back();
  Lent& lent = blocks_.at(unit.block);
  lent.parts[unit.index] = part;
  ++lent.num_used;
  return unit;
}

PackedStore::Handle PackedStore::Put(const PrefixKey& key, std::span<const std::byte> bytes) {
  const Handle item = items_.insert(floor_, {.key = key, .bytes = bytes.size(), .units = {}});
  for (int part = 0; part < UnitsFor(bytes.size()); ++part) {
    item->units.push_back(TakeUnit({&*item, part}));
    const auto rest = bytes.subspan(part * unit_bytes_);
    std::memcpy(Data(item->units.back()), rest.data(), std::min(rest.size(), unit_bytes_));
  }
  item_bytes_ += item->bytes;
  return item;
}

void PackedStore::Get(Handle item, std::vector<std::byte>* bytes) const {
  bytes->resize(item->bytes);
  std::span<std::byte> rest = *bytes;
  for (const Unit& unit : item->units) {
    const size_t size = std::min(rest.size(), unit_bytes_);
    std::memcpy(rest.data(), Data(unit), size);
    rest = rest.subspan(size);
  }
}

void PackedStore::Erase(Handle item) {
  for (const Unit& unit : item->units) {
    Lent& lent = blocks_.at(unit.block);
    lent.parts[unit.index] = {};
    --lent.num_used;
    free_.push_back(unit);
  }
  item_bytes_ -= item->bytes;
  if (floor_ == item) ++floor_;
  items_.erase(item);
}

void PackedStore::Touch(Handle item) { items_.splice(items_.end(), items_, item); }

void PackedStore::Refresh(Handle item) {
  if (floor_ == item) ++floor_;
  items_.splice(floor_, items_, item);
}

}  // namespace lynx
