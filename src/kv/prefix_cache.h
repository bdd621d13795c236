// SPDX-License-Identifier: Apache-2.0
// Which blocks hold the exact KV of which tokens, so that equal prompts are computed once.
//
// An entry is one full block: 64 tokens after a chain of parent entries, under a salt that keeps
// tenants apart. It is found by a hash of (parent entry, tokens, salt) and taken only when parent,
// tokens and salt are equal, so that a hash collision cannot give another prompt's KV. Entry ids
// are never reused, so a parent that was evicted and computed again does not adopt old children.
//
// With a codec (kv.resident: exact, 8bit) a block without owners whose memory is needed is not
// dropped but encoded into blocks that the pool lends (PackedStore), and a hit decodes it into a
// block again. With a lossless codec that forgets the encoding, so that KV is kept in one form at a
// time. What a lossy one has decoded is never encoded again, which would lose more each time: the
// bytes stay, as long as nothing else wants their room, and the block goes back to them. When there
// is nothing left to encode, the packed entry that was encoded (or matched) least recently is
// dropped. Encoding and decoding a block are *moves*; a step gets a number of them, so that it ends
// in time.
#pragma once

#include <xxhash.h>

#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_codec.h"
#include "kv/block_pool.h"
#include "kv/packed_store.h"
#include "kv/prefix_key.h"
#include "lynx/types.h"

namespace lynx {

using PrefixId = uint64_t;  // an entry; 0 = the empty prefix

struct PrefixMatch {
  std::vector<BlockId> blocks;  // of the leading blocks, in order; -1: its KV is packed
  std::vector<PrefixKey> keys;  // of their entries
  PrefixId last = 0;            // entry of the last one
  int num_packed = 0;
};

// Packed KV, see above. Counters are cumulative.
struct PackingStats {
  int64_t num_packed = 0;    // blocks that are packed now and nowhere else
  int64_t packed_bytes = 0;  // what they were encoded to
  int64_t num_encoded = 0;   // blocks
  int64_t num_restored = 0;  // decoded for a hit
  int64_t num_dropped = 0;   // encodings whose room was needed
};

// One thread. Works on the pool, which outlives it.
class PrefixCache {
 public:
  static constexpr int kUnlimited = std::numeric_limits<int>::max();

  // With a codec blocks are packed into the pool's memory. Both outlive it.
  explicit PrefixCache(BlockPool& pool, BlockCodec* codec = nullptr, const KvPoolView& memory = {});

  // The longest run of leading full blocks, at most max_blocks. Takes no ownership: the caller
  // calls Take before it allocates anything.
  PrefixMatch Match(std::span<const TokenId> tokens, std::string_view salt, int max_blocks) const;

  // Adds a request to the leading blocks of a match; the packed ones are decoded into blocks of the
  // pool. What it returns has no packed blocks, and is shorter than the match where the pool has no
  // block for the next one, or after max_restored packed ones. All of the match counts as used now.
  PrefixMatch Take(const PrefixMatch& match, int max_restored = kUnlimited);

  // `block` holds the exact KV of these 64 tokens after the entry `parent`. Returns the entry's
  // id; when there is an equal entry already, that one's, and `block` stays unknown.
  PrefixId Insert(PrefixId parent, std::span<const TokenId> tokens, std::string_view salt,
                  BlockId block);

  size_t size() const { return entries_.size(); }

  // From now on at most so many moves that could be left out. Without one left, blocks are dropped
  // instead of encoded.
  void AllowMoves(int count) { num_moves_ = count; }
  int num_moves() const { return num_moves_; }
  // Encodes up to max_moves blocks while fewer than num_free blocks are free. False: nothing to do.
  bool PackAhead(int num_free, int max_moves);
  const PackingStats& packing() const { return packing_; }

 private:
  struct Entry {
    PrefixId id = 0;
    PrefixId parent = 0;
    BlockId block = -1;  // -1: its KV is packed
    std::optional<PackedStore::Handle> packed;
    bool restored = false;  // the block has, or gets, what a lossy codec made of `packed`
    std::array<TokenId, kBlockSize> tokens = {};
    std::string salt;  // kept by first blocks; the others inherit it through their parent
  };
  using Entries = std::unordered_map<PrefixKey, Entry, PrefixKeyHash>;

  PrefixKey KeyOf(PrefixId parent, std::span<const TokenId> tokens, std::string_view salt) const;
  const Entry* Find(const PrefixKey& key, PrefixId parent, std::span<const TokenId> tokens,
                    std::string_view salt) const;
  void Keep(Entry& entry, const PrefixKey& key, BlockId block);
  Entry& EntryOf(BlockId cached) { return entries_.at(key_of_block_[cached]); }
  void Drop(Entries::iterator entry);
  void ErasePacked(Entry& entry);
  void CountPacked(const Entry& entry, int sign);
  void ProtectMatch(const PrefixMatch& match);
  void MakeRoom();
  void DropOldestPacked();
  bool TakeBackBlock();
  void Pack(BlockId block);
  void PutBack(Entries::iterator it);
  std::optional<BlockId> Restore(const PrefixKey& key);

  BlockPool& pool_;
  Entries entries_;
  std::vector<PrefixKey> key_of_block_;  // [num_blocks], of remembered blocks
  PrefixId next_id_ = 1;

  BlockCodec* const codec_;           // null: nothing is packed
  std::optional<PackedStore> store_;  // with a codec
  std::vector<std::byte> encoded_, decoding_;
  int num_moves_ = kUnlimited;
  PackingStats packing_;
};

}  // namespace lynx
