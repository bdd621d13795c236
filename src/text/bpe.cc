// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "text/utf8.h"

namespace lynx {
namespace {

// Up to here scanning all pairs for each merge beats a heap.
constexpr size_t kMaxShortSymbols = 48;

constexpr int kNoRank = std::numeric_limits<int>::max();

uint64_t PairKey(TokenId left, TokenId right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

// One symbol of a long piece: a doubly linked list in an array. id -1: merged into its left.
struct Link {
  TokenId id = -1;
  int previous = -1;
  int next = -1;
};

struct Candidate {
  int rank = 0;
  int position = 0;
  TokenId result = -1;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

using CandidateHeap = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

}  // namespace

Bpe::Bpe(const Options& options) : options_(options) {
  low_symbols_.fill(-1);
  byte_fallback_.fill(-1);
}

void Bpe::SetSymbol(char32_t symbol, TokenId id) {
  if (symbol < low_symbols_.size()) {
    low_symbols_[symbol] = id;
  } else {
    symbols_[symbol] = id;
  }
}

void Bpe::SetByteFallback(const std::array<TokenId, 256>& ids) {
  byte_fallback_ = ids;
  has_byte_fallback_ = true;
}

void Bpe::AddMerge(const Merge& merge) {
  merges_[PairKey(merge.left, merge.right)] = {merge.rank, merge.result};
}

void Bpe::AddWholePiece(std::string bytes, TokenId id) {
  whole_pieces_.emplace(std::move(bytes), id);
}

TokenId Bpe::SymbolOf(char32_t symbol) const {
  if (symbol < low_symbols_.size()) return low_symbols_[symbol];
  const auto found = symbols_.find(symbol);
  return found == symbols_.end() ? -1 : found->second;
}

const Bpe::Target* Bpe::FindMerge(TokenId left, TokenId right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

bool Bpe::HasFallback(std::string_view character) const {
  return std::all_of(character.begin(), character.end(),
                     [&](unsigned char byte) { return byte_fallback_[byte] >= 0; });
}

void Bpe::AppendSymbols(std::string_view piece, std::vector<TokenId>* symbols) const {
  // An unknown character is written when the next known one comes, after any fallback bytes in
  // between: the order of Hugging Face's merge_word.
  int num_unknown = 0;
  const auto write_unknown = [&] {
    if (num_unknown > 0) symbols->insert(symbols->end(), num_unknown, options_.unk_id);
    num_unknown = 0;
  };
  for (int length = 1; !piece.empty(); piece.remove_prefix(length)) {
    const char32_t c =
        options_.byte_level ? static_cast<uint8_t>(piece[0]) : DecodeUtf8(piece, &length);
    const TokenId id = SymbolOf(c);
    if (id >= 0) {
      write_unknown();
      symbols->push_back(id);
    } else if (has_byte_fallback_ && HasFallback(piece.substr(0, length))) {
      for (unsigned char byte : piece.substr(0, length)) symbols->push_back(byte_fallback_[byte]);
    } else if (options_.unk_id >= 0) {
      num_unknown = options_.fuse_unk ? 1 : num_unknown + 1;
    }
  }
  write_unknown();
}

void Bpe::Encode(std::string_view piece, std::vector<TokenId>* ids) const {
  if (!whole_pieces_.empty()) {
    if (const auto found = whole_pieces_.find(piece); found != whole_pieces_.end()) {
      ids->push_back(found->second);
      return;
    }
  }
  const size_t first = ids->size();
  AppendSymbols(piece, ids);
  const size_t num_symbols = ids->size() - first;
  if (num_symbols < 2) return;
  if (num_symbols <= kMaxShortSymbols) {
    MergeShort(ids, first);
  } else {
    MergeLong(ids, first);
  }
}

void Bpe::MergeShort(std::vector<TokenId>* ids, size_t first) const {
  TokenId* symbols = ids->data() + first;
  int count = static_cast<int>(ids->size() - first);
  Target pairs[kMaxShortSymbols];  // of symbol i and i + 1
  const auto look_up = [&](int i) {
    const Target* merge = FindMerge(symbols[i], symbols[i + 1]);
    pairs[i] = merge != nullptr ? *merge : Target{kNoRank, -1};
  };
  for (int i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    int best = 0;
    for (int i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].result;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(pairs + best + 1, pairs + count - 1, pairs + best);
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  ids->resize(first + count);
}

void Bpe::MergeLong(std::vector<TokenId>* ids, size_t first) const {
  const int count = static_cast<int>(ids->size() - first);
  std::vector<Link> links(count);
  CandidateHeap heap;
  const auto propose = [&](int position) {
    if (position < 0 || links[position].next < 0) return;
    const Target* merge = FindMerge(links[position].id, links[links[position].next].id);
    if (merge != nullptr) heap.push({merge->rank, position, merge->result});
  };
  for (int i = 0; i < count; ++i) {
    links[i] = {(*ids)[first + i], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int i = 0; i < count; ++i) propose(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Link& left = links[top.position];
    if (left.id < 0 || left.next < 0) continue;
    Link& right = links[left.next];
    const Target* merge = FindMerge(left.id, right.id);
    // Stale: one of the two has been merged since.
    if (merge == nullptr || merge->result != top.result || merge->rank != top.rank) continue;
    left.id = top.result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) links[left.next].previous = top.position;
    propose(left.previous);
    propose(top.position);
  }
  ids->resize(first);
  for (int i = 0; i >= 0; i = links[i].next) ids->push_back(links[i].id);
}

}  // namespace lynx
