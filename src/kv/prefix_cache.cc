// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <algorithm>

namespace lynx {

PrefixCache::PrefixCache(BlockPool& pool) : pool_(pool), key_of_block_(pool.counts().total) {
  pool.set_on_evict([this](BlockId block) { Evict(block); });
}

PrefixCache::Key PrefixCache::KeyOf(PrefixId parent, std::span<const TokenId> tokens,
                                    std::string_view salt) const {
  const uint64_t seed =
      parent == 0 ? XXH3_64bits(salt.data(), salt.size()) : parent * 0x9e3779b97f4a7c15ull;
  const XXH128_hash_t hash = XXH3_128bits_withSeed(tokens.data(), tokens.size_bytes(), seed);
  return {.low = hash.low64, .high = hash.high64};
}

const PrefixCache::Entry* PrefixCache::Find(const Key& key, PrefixId parent,
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
    const Entry* entry =
        Find(KeyOf(match.last, block_tokens, salt), match.last, block_tokens, salt);
    if (entry == nullptr) break;
    match.blocks.push_back(entry->block);
    match.last = entry->id;
  }
  return match;
}

PrefixId PrefixCache::Insert(PrefixId parent, std::span<const TokenId> tokens,
                             std::string_view salt, BlockId block) {
  const Key key = KeyOf(parent, tokens, salt);
  if (const Entry* same = Find(key, parent, tokens, salt)) return same->id;
  // An entry with this hash but other tokens: the newcomer takes its place.
  if (const auto it = entries_.find(key); it != entries_.end()) {
    pool_.Forget(it->second.block);
    entries_.erase(it);
  }
  Entry entry{.id = next_id_++, .parent = parent, .block = block, .salt = {}};
  std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
  if (parent == 0) entry.salt = salt;
  const PrefixId id = entry.id;
  entries_.emplace(key, std::move(entry));
  key_of_block_[block] = key;
  pool_.Remember(block);
  return id;
}

void PrefixCache::Evict(BlockId block) { entries_.erase(key_of_block_[block]); }

}  // namespace lynx
