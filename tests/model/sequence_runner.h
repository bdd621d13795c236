// SPDX-License-Identifier: Apache-2.0
// Drives Model::Forward as an engine would: a pool, block tables, ragged batches.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "lynx/status.h"
#include "model/model.h"

namespace lynx {

inline std::vector<TokenId> RandomTokens(int n, int vocab_size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& id : tokens) id = static_cast<TokenId>(random() % vocab_size);
  return tokens;
}

// One sequence's place in the pool.
struct TestSequence {
  std::vector<BlockId> block_table;
  int length = 0;  // tokens whose KV is in the pool
};

class SequenceRunner {
 public:
  SequenceRunner(Model& model, int num_blocks)
      : model_(model),
        cache_(*KvCache::Create(model.backends(), model.kv_layout(), num_blocks)),
        pool_(cache_->view()) {}

  const KvPoolView& pool() const { return pool_; }
  int vocab_size() const { return model_.config().vocab_size; }

  // Room for max_tokens. Blocks are handed out from both ends in turn, so that none of a
  // sequence's are neighbours.
  TestSequence NewSequence(int max_tokens) {
    TestSequence sequence;
    for (int i = 0; i * kBlockSize < max_tokens; ++i) {
      LYNX_CHECK(next_block_ < pool_.num_blocks);
      const int n = next_block_++;
      sequence.block_table.push_back(n % 2 == 0 ? n / 2 : pool_.num_blocks - 1 - n / 2);
    }
    return sequence;
  }
  void FreeAll() { next_block_ = 0; }

  struct Part {
    TestSequence* sequence = nullptr;
    std::span<const TokenId> tokens;
  };
  enum class Rows { kAll, kLast };

  // One forward pass over a row group of each part; logits [rows, vocab_size] of all rows or of
  // the last row of each part.
  std::vector<float> Step(std::span<const Part> parts, Rows wanted) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions, logit_rows;
    std::vector<RowGroup> groups;
    for (const Part& part : parts) {
      groups.push_back({.row_begin = static_cast<int>(tokens.size()),
                        .num_rows = static_cast<int>(part.tokens.size()),
                        .position = part.sequence->length,
                        .block_table = part.sequence->block_table.data()});
      for (TokenId id : part.tokens) {
        if (wanted == Rows::kAll) logit_rows.push_back(static_cast<int32_t>(tokens.size()));
        tokens.push_back(id);
        positions.push_back(part.sequence->length++);
      }
      if (wanted == Rows::kLast) logit_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    std::vector<float> logits(logit_rows.size() * vocab_size());
    model_.Forward(
        {.tokens = tokens, .positions = positions, .groups = groups, .logit_rows = logit_rows},
        pool_, logits.data());
    return logits;
  }

  // Appends tokens in chunks; logits of every row, or of the last one only.
  std::vector<float> Feed(TestSequence& sequence, std::span<const TokenId> tokens, int chunk,
                          Rows wanted) {
    std::vector<float> logits;
    while (!tokens.empty()) {
      const size_t n = std::min<size_t>(chunk, tokens.size());
      const Part part[] = {{&sequence, tokens.first(n)}};
      tokens = tokens.subspan(n);
      std::vector<float> rows = Step(part, wanted);
      if (wanted == Rows::kLast) {
        logits = std::move(rows);
      } else {
        logits.insert(logits.end(), rows.begin(), rows.end());
      }
    }
    return logits;
  }

  // Greedy continuations of several sequences in one batch, from the logits of their last rows
  // [sequences, vocab_size].
  std::vector<std::vector<TokenId>> Greedy(std::span<TestSequence> sequences,
                                           std::vector<float> logits, int num_tokens) {
    std::vector<std::vector<TokenId>> ids(sequences.size());
    for (int step = 0;; ++step) {
      for (size_t s = 0; s < sequences.size(); ++s) ids[s].push_back(ArgMax(logits, s));
      if (step == num_tokens - 1) return ids;
      std::vector<Part> parts;
      for (size_t s = 0; s < sequences.size(); ++s) {
        parts.push_back({&sequences[s], std::span(ids[s]).last(1)});
      }
      logits = Step(parts, Rows::kLast);
    }
  }

  TokenId ArgMax(const std::vector<float>& logits, size_t row) const {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * vocab_size());
    return static_cast<TokenId>(std::max_element(begin, begin + vocab_size()) - begin);
  }

 private:
  Model& model_;
  const std::unique_ptr<KvCache> cache_;
  const KvPoolView pool_;
  int next_block_ = 0;
};

// Logits of every row of a random sequence of so many tokens, alone in the pool, `chunk` tokens at
// a time.
inline std::vector<float> LogitsAlone(SequenceRunner& runner, int num_tokens, int chunk) {
  runner.FreeAll();
  TestSequence sequence = runner.NewSequence(num_tokens);
  return runner.Feed(sequence, RandomTokens(num_tokens, runner.vocab_size(), 1), chunk,
                     SequenceRunner::Rows::kAll);
}

// The same between two strangers that move by 7 tokens and by 1.
inline std::vector<float> LogitsInCompany(SequenceRunner& runner, int num_tokens, int chunk) {
  runner.FreeAll();
  const int vocab_size = runner.vocab_size();
  const auto tokens = RandomTokens(num_tokens, vocab_size, 1);
  const auto before = RandomTokens(num_tokens, vocab_size, 2);
  const auto after = RandomTokens(num_tokens, vocab_size, 3);
  TestSequence ours = runner.NewSequence(num_tokens);
  TestSequence first = runner.NewSequence(num_tokens);
  TestSequence last = runner.NewSequence(num_tokens);
  std::vector<float> logits;
  for (int at = 0; at < num_tokens; at += chunk) {
    const size_t n = std::min(chunk, num_tokens - at);
    const SequenceRunner::Part parts[] = {{&first, std::span(before).subspan(first.length, 7)},
                                          {&ours, std::span(tokens).subspan(at, n)},
                                          {&last, std::span(after).subspan(last.length, 1)}};
    const auto rows = runner.Step(parts, SequenceRunner::Rows::kAll);
    const auto begin = rows.begin() + 7 * vocab_size;
    logits.insert(logits.end(), begin, begin + static_cast<std::ptrdiff_t>(n) * vocab_size);
  }
  return logits;
}

}  // namespace lynx
