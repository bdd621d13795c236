// SPDX-License-Identifier: Apache-2.0
#include "bench/accuracy/kv_accuracy.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "codec/tile_access.h"
#include "kv/block_pool.h"

namespace lynx {
namespace {

constexpr int kNumBranches = 1 + kNumNeedles;

int NumPages(int num_tokens) { return (num_tokens + kPageTokens - 1) / kPageTokens; }

// The instruction's branch may be shorter than a question's.
int MaxBranchTokens(int max_tokens) { return max_tokens + 2 * kGreedyRows; }

// A branch has at most this many blocks of its own: two pages, the tail and the text after it.
constexpr int kOwnBlocks = 2 * kPageBlocks + 8;

float ElementOf(const KvPoolView& pool, const std::byte* tile, size_t e) {
  if (pool.layout.dtype == KvDtype::kF32) return reinterpret_cast<const float*>(tile)[e];
  return ToFloat(reinterpret_cast<const Bf16*>(tile)[e]);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvAccuracy>> KvAccuracy::Create(Model& model,
                                                               const Tokenizer& tokenizer,
                                                               int max_tokens, int num_threads) {
  const int longest = MaxBranchTokens(max_tokens), context = model.config().max_model_len;
  if (longest > context) {
    return absl::InvalidArgumentError(absl::StrCat("prompts of ", max_tokens, " tokens need ",
                                                   longest, ", the model's context is ", context));
  }
  if (!model.backend().is_host()) {
    return absl::InvalidArgumentError("bench accuracy: measures the cpu back-end only");
  }
  std::unique_ptr<KvAccuracy> made(new KvAccuracy(model, tokenizer, num_threads));
  const int num_blocks = BlocksFor(longest) + kNumBranches * kOwnBlocks;
  LYNX_ASSIGN_OR_RETURN(made->exact_,
                        KvCache::Create(model.backend(), model.kv_layout(), num_blocks));
  LYNX_ASSIGN_OR_RETURN(made->decoded_,
                        KvCache::Create(model.backend(), model.kv_layout(), num_blocks));
  made->logits_.resize(size_t{kGreedyRows} * model.config().vocab_size);
  return made;
}

std::span<const float> KvAccuracy::Logits(int row) const {
  const size_t vocab_size = model_.config().vocab_size;
  return {logits_.data() + row * vocab_size, vocab_size};
}

TokenId KvAccuracy::Choice(int row) const {
  const auto logits = Logits(row);
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void KvAccuracy::Run(const KvPoolView& pool, const Branch& branch, std::span<const TokenId> tokens,
                     int position, int num_logits) {
  while (!tokens.empty()) {
    const auto rows = std::min(tokens.size(), size_t{kAccuracyChunk});
    const RowGroup group{0, static_cast<int>(rows), position, branch.block_table.data()};
    std::vector<int32_t> positions(rows), logit_rows;
    std::iota(positions.begin(), positions.end(), position);
    if (rows == tokens.size()) {
      logit_rows.resize(num_logits);
      std::iota(logit_rows.begin(), logit_rows.end(), static_cast<int32_t>(rows) - num_logits);
    }
    model_.Forward({.tokens = tokens.first(rows),
                    .positions = positions,
                    .groups = {&group, 1},
                    .logit_rows = logit_rows},
                   pool, logits_.data());
    tokens = tokens.subspan(rows);
    position += static_cast<int>(rows);
  }
}

void KvAccuracy::SetBranches(const AccuracyPrompt& prompt) {
  int shortest = static_cast<int>(prompt.tokens.size());
  for (const NeedleQuestion& q : prompt.needles) {
    shortest = std::min(shortest, prompt.num_context + static_cast<int>(q.tail.size()));
  }
  num_shared_pages_ =
      std::max(0, std::min(shortest - kNumRecentTokens, prompt.num_context)) / kPageTokens;
  branches_.assign(1 + prompt.needles.size(), {});
  BlockId next = num_shared_pages_ * kPageBlocks;
  for (size_t i = 0; i < branches_.size(); ++i) {
    Branch& branch = branches_[i];
    branch.num_tokens =
        i == 0 ? static_cast<int>(prompt.tokens.size())
               : prompt.num_context + static_cast<int>(prompt.needles[i - 1].tail.size());
    branch.block_table.resize(num_shared_pages_ * kPageBlocks);
    std::iota(branch.block_table.begin(), branch.block_table.end(), 0);
    const int num_blocks = BlocksFor(branch.num_tokens + kGreedyRows);
    while (static_cast<int>(branch.block_table.size()) < num_blocks) {
      branch.block_table.push_back(next++);
    }
  }
}

absl::Status KvAccuracy::SetPrompt(const AccuracyPrompt& prompt) {
  SetBranches(prompt);
  if (branches_.back().block_table.back() >= exact_->view().num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt of ", prompt.tokens.size(), " tokens and its questions need ",
        branches_.back().block_table.back() + 1, " blocks, there are ", exact_->view().num_blocks));
  }
  continuation_ = prompt.continuation;
  WriteText(prompt);
  for (size_t i = 0; i < prompt.needles.size(); ++i) {
    const std::span<const TokenId> context(prompt.tokens.data(), prompt.num_context);
    Run(exact_->view(), branches_[i + 1], context.subspan(shared_tokens()), shared_tokens(), 0);
    Answer(branches_[i + 1], prompt.needles[i]);
  }
  return absl::OkStatus();
}

void KvAccuracy::WriteText(const AccuracyPrompt& prompt) {
  Branch& branch = branches_[0];
  Run(exact_->view(), branch, prompt.tokens, 0, 1);
  branch.text = {Choice(0)};
  while (static_cast<int>(branch.text.size()) <= kGreedyRows) {
    const int position = branch.num_tokens + static_cast<int>(branch.text.size()) - 1;
    Run(exact_->view(), branch, {&branch.text.back(), 1}, position, 1);
    branch.rows.push_back(MakeExactRow(Logits(0)));
    branch.text.push_back(branch.rows.back().choice);
  }
  Run(exact_->view(), branch, std::span(continuation_).first(kGreedyRows), branch.num_tokens,
      kGreedyRows);
  true_rows_.clear();
  for (int r = 0; r < kGreedyRows; ++r) true_rows_.push_back(MakeExactRow(Logits(r)));
}

// The context is in the branch's blocks.
void KvAccuracy::Answer(Branch& branch, const NeedleQuestion& question) {
  int position = branch.num_tokens - static_cast<int>(question.tail.size());
  Run(exact_->view(), branch, question.tail, position, 1);
  branch.text = {Choice(0)};
  const auto has_code = [&] {
    return tokenizer_.Decode(branch.text, true).find(question.code) != std::string::npos;
  };
  for (position = branch.num_tokens;
       !has_code() && static_cast<int>(branch.text.size()) < kAnswerTokens; ++position) {
    Run(exact_->view(), branch, {&branch.text.back(), 1}, position, 1);
    branch.text.push_back(Choice(0));
  }
  branch.answered = has_code();
}

absl::StatusOr<size_t> KvAccuracy::TransferLayer(const KvPageCodec& codec, const Branch& branch,
                                                 int layer, int begin, int end) {
  size_t bytes = 0;
  std::vector<std::vector<std::byte>> stages(codec.num_stages());
  for (int p = begin; p < end; ++p) {
    const int first_token = p * kPageTokens;
    const KvPage page{.layer = layer,
                      .first_token = first_token,
                      .num_tokens = std::min(kPageTokens, branch.num_tokens - first_token),
                      .blocks = &branch.block_table[p * kPageBlocks],
                      .num_sequence_tokens = branch.num_tokens,
                      .num_heads = model_.config().num_kv_heads};
    codec.EncodePage(exact_->view(), page, stages);
    for (const auto& stage : stages) bytes += stage.size();
    const std::vector<MemoryView> sent(stages.begin(), stages.end());
    LYNX_RETURN_IF_ERROR(codec.DecodePage(page, sent, decoded_->view()));
  }
  return bytes;
}

absl::StatusOr<size_t> KvAccuracy::Transfer(const KvPageCodec& codec, const Branch& branch,
                                            int begin, int end) {
  const int num_layers = model_.config().num_layers;
  std::vector<absl::StatusOr<size_t>> bytes(num_layers, size_t{0});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < num_threads_; ++t) {
      threads.emplace_back([&, t] {
        for (int layer = t; layer < num_layers; layer += num_threads_) {
          bytes[layer] = TransferLayer(codec, branch, layer, begin, end);
        }
      });
    }
  }
  size_t sum = 0;
  for (const auto& layer_bytes : bytes) {
    LYNX_RETURN_IF_ERROR(layer_bytes.status());
    sum += *layer_bytes;
  }
  return sum;
}

std::vector<SquaredError> KvAccuracy::LayerErrors(const Branch& branch) const {
  const KvLayout& layout = exact_->view().layout;
  std::vector<SquaredError> errors(layout.num_layers * 2);
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      SquaredError& sum = errors[layer * 2 + static_cast<int>(kind)];
      for (int b = 0; b < BlocksFor(branch.num_tokens); ++b) {
        const PageShape shape{.kind = kind,
                              .head_dim = layout.head_dim,
                              .num_tokens = branch.num_tokens - b * kBlockSize};
        const TileRows rows = RowsOf(shape, 0);
        for (int head = 0; head < layout.num_kv_heads; ++head) {
          const std::byte* exact = exact_->view().tile(branch.block_table[b], layer, kind, head);
          const std::byte* other = decoded_->view().tile(branch.block_table[b], layer, kind, head);
          for (int r = 0; r < rows.num_rows; ++r) {
            for (int i = 0; i < rows.row_size; ++i) {
              const size_t e = static_cast<size_t>(r) * rows.stride + i;
              const double x = ElementOf(exact_->view(), exact, e);
              const double d = ElementOf(decoded_->view(), other, e) - x;
              sum += {.error = d * d, .power = x * x};
            }
          }
        }
      }
    }
  }
  return errors;
}

// The first token comes from the exact cache, as in a hand-off.
bool KvAccuracy::KeepsAnswer(const Branch& branch) {
  const int num_rows = static_cast<int>(branch.text.size()) - 1;
  if (num_rows == 0) return true;
  Run(decoded_->view(), branch, std::span(branch.text).first(num_rows), branch.num_tokens,
      num_rows);
  for (int r = 0; r < num_rows; ++r) {
    if (Choice(r) != branch.text[r + 1]) return false;
  }
  return true;
}

absl::StatusOr<PromptScore> KvAccuracy::Evaluate(const KvPageCodec& codec) {
  LYNX_CHECK(!branches_.empty());
  PromptScore score;
  LYNX_ASSIGN_OR_RETURN(score.bytes, Transfer(codec, branches_[0], 0, num_shared_pages_));
  for (size_t i = 0; i < branches_.size(); ++i) {
    const Branch& branch = branches_[i];
    if (!branch.answered) continue;
    LYNX_ASSIGN_OR_RETURN(const size_t bytes,
                          Transfer(codec, branch, num_shared_pages_, NumPages(branch.num_tokens)));
    if (i == 0) {
      score.bytes += bytes;
    } else {
      ++score.num_needles;
      score.num_needles_kept += KeepsAnswer(branch);
    }
  }
  const Branch& branch = branches_[0];
  const KvLayout& layout = exact_->view().layout;
  score.num_elements = layout.block_bytes() / layout.element_bytes() / kBlockSize *
                       static_cast<size_t>(branch.num_tokens);
  score.layer_error = LayerErrors(branch);
  Run(decoded_->view(), branch, std::span(branch.text).first(kGreedyRows), branch.num_tokens,
      kGreedyRows);
  for (int r = 0; r < kGreedyRows; ++r) {
    score.drafted.push_back(ScoreRow(branch.rows[r], Logits(r), branch.text[r + 1]));
  }
  Run(decoded_->view(), branch, std::span(continuation_).first(kGreedyRows), branch.num_tokens,
      kGreedyRows);
  for (int r = 0; r < kGreedyRows; ++r) {
    score.true_text.push_back(ScoreRow(true_rows_[r], Logits(r), continuation_[r + 1]));
  }
  return score;
}

}  // namespace lynx
