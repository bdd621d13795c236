// SPDX-License-Identifier: Apache-2.0
// Which blocks hold the exact KV of which tokens, so that equal prompts are computed once.
//
// An entry is one full block: 64 tokens after a chain of parent entries, under a salt that keeps
// tenants apart. It is found by a hash of (parent entry, tokens, salt) and taken only when parent,
// tokens and salt are equal, so that a hash collision cannot give another prompt's KV. Entry ids
// are never reused, so a parent that was evicted and computed again does not adopt old children.
#pragma once

#include <xxhash.h>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "lynx/types.h"

namespace lynx {

using PrefixId = uint64_t;  // an entry; 0 = the empty prefix

struct PrefixMatch {
  std::vector<BlockId> blocks;  // of the leading blocks, in order
  PrefixId last = 0;            // entry of the last one
};

// One thread. Works on the pool, which outlives it.
class PrefixCache {
 public:
  explicit PrefixCache(BlockPool& pool);

  // The longest run of leading full blocks, at most max_blocks. Takes no ownership: the caller
  // adds its request to the blocks before it allocates anything.
  PrefixMatch Match(std::span<const TokenId> tokens, std::string_view salt, int max_blocks) const;

  // `block` holds the exact KV of these 64 tokens after the entry `parent`. Returns the entry's
  // id; when there is an equal entry already, that one's, and `block` stays unknown.
  PrefixId Insert(PrefixId parent, std::span<const TokenId> tokens, std::string_view salt,
                  BlockId block);

  size_t size() const { return entries_.size(); }

 private:
  struct Key {
    uint64_t low = 0, high = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return key.low; }
  };
  struct Entry {
    PrefixId id = 0;
    PrefixId parent = 0;
    BlockId block = -1;
    std::array<TokenId, kBlockSize> tokens = {};
    std::string salt;  // kept by first blocks; the others inherit it through their parent
  };

  Key KeyOf(PrefixId parent, std::span<const TokenId> tokens, std::string_view salt) const;
  const Entry* Find(const Key& key, PrefixId parent, std::span<const TokenId> tokens,
                    std::string_view salt) const;
  void Evict(BlockId block);

  BlockPool& pool_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
  std::vector<Key> key_of_block_;  // [num_blocks], of remembered blocks
  PrefixId next_id_ = 1;
};

}  // namespace lynx
