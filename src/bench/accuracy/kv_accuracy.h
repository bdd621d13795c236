// SPDX-License-Identifier: Apache-2.0
// One prompt's exact cache, and what comes of it when its KV goes through a codec.
//
// 1. SetPrompt prefills the prompt into one pool, writes the greedy text and reads the true text
//    after it, and answers the needle questions, all on the exact cache.
// 2. Evaluate encodes that KV, page by page as a hand-off does, decodes it into a second pool, and
//    runs the same tokens against that.
//
// A prompt has *branches*: what follows the context is the instruction or one of the questions.
// They share the pages that no branch's last tokens touch, so those pass a codec once.
#pragma once

#include <memory>
#include <vector>

#include "bench/accuracy/metrics.h"
#include "bench/accuracy/prompts.h"
#include "codec/kv_page_codec.h"
#include "kv/kv_cache.h"
#include "model/model.h"

namespace lynx {

inline constexpr int kGreedyRows = 64;      // rows compared over each of the two texts
inline constexpr int kAnswerTokens = 12;    // the longest answer to a question
inline constexpr int kAccuracyChunk = 512;  // the largest batch: max_rows of the model

// One thread; model and tokenizer outlive it.
class KvAccuracy {
 public:
  // max_tokens: of a prompt. kInvalidArgument when the model's context is too short for it and what
  // follows.
  static absl::StatusOr<std::unique_ptr<KvAccuracy>> Create(Model& model,
                                                            const Tokenizer& tokenizer,
                                                            int max_tokens, int num_threads);

  // kInvalidArgument when a branch is longer than the pools.
  absl::Status SetPrompt(const AccuracyPrompt& prompt);
  // After SetPrompt. All stages of the codec's plan are sent; a plan with one stage measures it.
  absl::StatusOr<PromptScore> Evaluate(const KvPageCodec& codec);

 private:
  // The instruction or a question, and what the exact cache says after it.
  struct Branch {
    std::vector<BlockId> block_table;
    int num_tokens = 0;          // of the prompt
    std::vector<TokenId> text;   // the exact greedy text or answer
    std::vector<ExactRow> rows;  // after each token of text but the last; only branch 0
    bool answered = true;        // the answer holds the code
  };

  KvAccuracy(Model& model, const Tokenizer& tokenizer, int num_threads)
      : model_(model), tokenizer_(tokenizer), num_threads_(num_threads) {}

  void SetBranches(const AccuracyPrompt& prompt);
  int shared_tokens() const { return num_shared_pages_ * kPageTokens; }
  // Runs tokens at `position` of a branch; the logits of the last num_logits rows are in logits_.
  void Run(const KvPoolView& pool, const Branch& branch, std::span<const TokenId> tokens,
           int position, int num_logits);
  std::span<const float> Logits(int row) const;
  TokenId Choice(int row) const;
  void WriteText(const AccuracyPrompt& prompt);
  void Answer(Branch& branch, const NeedleQuestion& question);

  // Encodes and decodes pages [begin, end) of a branch in all layers; their bytes.
  absl::StatusOr<size_t> Transfer(const KvPageCodec& codec, const Branch& branch, int begin,
                                  int end);
  absl::StatusOr<size_t> TransferLayer(const KvPageCodec& codec, const Branch& branch, int layer,
                                       int begin, int end);
  std::vector<SquaredError> LayerErrors(const Branch& branch) const;
  bool KeepsAnswer(const Branch& branch);

  Model& model_;
  const Tokenizer& tokenizer_;
  const int num_threads_;
  std::unique_ptr<KvCache> exact_, decoded_;
  std::vector<float> logits_;  // [kGreedyRows][vocab_size]

  int num_shared_pages_ = 0;
  std::vector<Branch> branches_;       // the instruction, then the questions
  std::vector<TokenId> continuation_;  // the true text
  std::vector<ExactRow> true_rows_;    // after each of its tokens but the last
};

}  // namespace lynx
