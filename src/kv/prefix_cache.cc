// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "lynx/status.h"

namespace lynx {

PrefixCache::PrefixCache(BlockPool& pool, BlockCodec* codec, const KvPoolView& memory)
    : pool_(pool), key_of_block_(pool.counts().total), codec_(codec) {
  if (codec != nullptr) store_.emplace(memory);
  pool.set_make_room([this] { MakeRoom(); });
}

PrefixKey PrefixCache::KeyOf(PrefixId parent, std::span<const TokenId> tokens,
                             std::string_view salt) const {
  const uint64_t seed =
      parent == 0 ? XXH3_64bits(salt.data(), salt.size()) : parent * 0x9e3779b97f4a7c15ull;
  const XXH128_hash_t hash = XXH3_128bits_withSeed(tokens.data(), tokens.size_bytes(), seed);
  return {.low = hash.low64, .high = hash.high64};
}

const PrefixCache::Entry* PrefixCache::Find(const PrefixKey& key, PrefixId parent,
                                            std::span<const TokenId> tokens,
                                            std::string_view salt) const {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  const Entry& entry = it->second;
  const bool same = entry.parent == parent && (parent != 0 || entry.salt == salt) &&
                    std::equal(tokens.begin(), tokens.end(), entry.tokens.begin());
  return same ? &entry : nullptr;
}

PrefixMatch PrefixCache::Match(std::span<const TokenId> tokens, std::string_view salt,
                               int max_blocks) const {
  PrefixMatch match;
  const int num_full = static_cast<int>(tokens.size()) / kBlockSize;
  for (int i = 0; i < std::min(num_full, max_blocks); ++i) {
    const auto block_tokens = tokens.subspan(size_t(i) * kBlockSize, kBlockSize);
    const PrefixKey key = KeyOf(match.last, block_tokens, salt);
    const Entry* entry = Find(key, match.last, block_tokens, salt);
    if (entry == nullptr) break;
    match.blocks.push_back(entry->block);
    match.keys.push_back(key);
    match.last = entry->id;
    match.num_packed += entry->block < 0 ? 1 : 0;
  }
  return match;
}

PrefixMatch PrefixCache::Take(const PrefixMatch& match, int max_restored) {
  const size_t size = match.blocks.size();
  ProtectMatch(match);
  PrefixMatch taken;
  size_t end = 0;
  for (int num_restored = 0; end < size; ++end) {
    std::optional<BlockId> block = match.blocks[end];
    if (*block < 0) block = num_restored++ < max_restored ? Restore(match.keys[end]) : std::nullopt;
    if (!block) break;
    taken.blocks.push_back(*block);
    taken.keys.push_back(match.keys[end]);
    taken.last = entries_.at(match.keys[end]).id;
  }
  for (size_t i = size; i-- > end;) {
    if (match.blocks[i] >= 0) pool_.ReleaseRequest(match.blocks[i]);
  }
  if (store_) store_->ClearFloor();
  return taken;
}

// Until the match has been taken, everything else goes first: its blocks are owned, and its packed
// entries become the newest, the first one last.
void PrefixCache::ProtectMatch(const PrefixMatch& match) {
  bool any_packed = false;
  for (size_t i = match.blocks.size(); i-- > 0;) {
    Entry& entry = entries_.at(match.keys[i]);
    if (entry.block >= 0) {
      pool_.AddRequest(entry.block);
      if (entry.packed) store_->Refresh(*entry.packed);
      continue;
    }
    store_->Touch(*entry.packed);
    if (!std::exchange(any_packed, true)) store_->SetFloor(*entry.packed);
  }
}

PrefixId PrefixCache::Insert(PrefixId parent, std::span<const TokenId> tokens,
                             std::string_view salt, BlockId block) {
  const PrefixKey key = KeyOf(parent, tokens, salt);
  if (const Entry* same = Find(key, parent, tokens, salt)) {
    Entry& entry = entries_.at(key);
    if (entry.block < 0) {  // computed again nevertheless
      ErasePacked(entry);
      Keep(entry, key, block);
    }
    return same->id;
  }
  // An entry with this hash but other tokens: the newcomer takes its place.
  if (const auto it = entries_.find(key); it != entries_.end()) Drop(it);
  Entry entry{.id = next_id_++, .parent = parent, .salt = {}};
  std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
  if (parent == 0) entry.salt = salt;
  const PrefixId id = entry.id;
  Keep(entries_.emplace(key, std::move(entry)).first->second, key, block);
  return id;
}

// The entry's KV is in `block` from now on.
void PrefixCache::Keep(Entry& entry, const PrefixKey& key, BlockId block) {
  entry.block = block;
  key_of_block_[block] = key;
  pool_.Remember(block);
}

void PrefixCache::Drop(Entries::iterator entry) {
  if (entry->second.block >= 0) pool_.Forget(entry->second.block);
  ErasePacked(entry->second);
  entries_.erase(entry);
}

void PrefixCache::ErasePacked(Entry& entry) {
  if (!entry.packed) return;
  if (!entry.restored) CountPacked(entry, -1);
  store_->Erase(*entry.packed);
  entry.packed.reset();
}

// An entry whose KV is nowhere else begins or ceases to be packed.
void PrefixCache::CountPacked(const Entry& entry, int sign) {
  packing_.num_packed += sign;
  packing_.packed_bytes += sign * static_cast<int64_t>((*entry.packed)->bytes);
}

// Makes a block free. There are cached or packed ones.
void PrefixCache::MakeRoom() {
  while (!TakeBackBlock() && pool_.counts().free == 0) {
    const std::optional<BlockId> cached = pool_.oldest_cached();
    if (cached && codec_ != nullptr && (num_moves_ > 0 || EntryOf(*cached).restored)) {
      Pack(*cached);
    } else if (store_ && store_->num_items() > 0) {
      DropOldestPacked();
    } else {
      Drop(entries_.find(key_of_block_[*cached]));
    }
  }
}

// Of an entry that is in a block, only the bytes.
void PrefixCache::DropOldestPacked() {
  ++packing_.num_dropped;
  const auto it = entries_.find(store_->oldest()->key);
  if (it->second.restored) {
    ErasePacked(it->second);
  } else {
    Drop(it);
  }
}

// A block of the store that its items do not need.
bool PrefixCache::TakeBackBlock() {
  if (!store_ || store_->num_free_units() < store_->units_per_block()) return false;
  pool_.TakeBack(store_->GiveBack());
  return true;
}

// Moves a cached block into the store, which takes the block itself if it lacks the room: then
// none has become free. What does not become smaller is dropped.
void PrefixCache::Pack(BlockId block) {
  const auto it = entries_.find(key_of_block_[block]);
  Entry& entry = it->second;
  if (entry.restored) {
    PutBack(it);
    return;
  }
  codec_->Encode(block, entry.parent == 0, &encoded_);
  num_moves_ -= num_moves_ == kUnlimited ? 0 : 1;
  const int num_units = store_->UnitsFor(encoded_.size());
  if (num_units >= store_->units_per_block()) {
    Drop(it);
    return;
  }
  pool_.Forget(block);
  if (store_->num_free_units() < num_units) {
    pool_.Lend(block);
    store_->Lend(block);
  }
  entry.packed = store_->Put(it->first, encoded_);
  entry.block = -1;
  CountPacked(entry, 1);
  ++packing_.num_encoded;
}

// The block of a restored entry becomes free: what it was decoded from is still there, or both go.
void PrefixCache::PutBack(Entries::iterator it) {
  Entry& entry = it->second;
  if (!entry.packed) {
    Drop(it);
    return;
  }
  pool_.Forget(entry.block);
  entry.block = -1;
  entry.restored = false;
  store_->Refresh(*entry.packed);
  CountPacked(entry, 1);
}

// A block with the KV of a packed entry, owned by a request. Nothing, and no entry any more, when
// the pool has no block; or when there was no such entry.
std::optional<BlockId> PrefixCache::Restore(const PrefixKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  Entry& entry = it->second;
  store_->Get(*entry.packed, &decoding_);
  num_moves_ -= num_moves_ == kUnlimited ? 0 : 1;
  if (codec_->lossless()) {
    ErasePacked(entry);
  } else {  // may still be erased for the block's sake
    CountPacked(entry, -1);
    entry.restored = true;
    store_->Refresh(*entry.packed);
  }
  const std::optional<BlockId> block = pool_.Allocate();
  if (!block) {
    Drop(it);
    return std::nullopt;
  }
  codec_->Decode(decoding_, entry.parent == 0, *block);
  Keep(entry, key, *block);
  ++packing_.num_restored;
  return block;
}

bool PrefixCache::PackAhead(int num_free, int max_moves) {
  if (codec_ == nullptr) return false;
  bool any = false;
  while (pool_.counts().free < num_free && max_moves-- > 0) {
    const std::optional<BlockId> cached = pool_.oldest_cached();
    if (TakeBackBlock()) {
      any = true;
    } else if (cached) {
      Pack(*cached);
      any = true;
    } else {
      break;
    }
  }
  return any;
}

}  // namespace lynx
