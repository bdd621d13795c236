// SPDX-License-Identifier: Apache-2.0
#include "sampling/filters.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/common/exact_math.h"

namespace lynx {
namespace {

constexpr double kRuledOut = -std::numeric_limits<double>::infinity();
constexpr float kMaxLogitBias = 100.0f;
// Up to this k a bounded heap beats selecting over the whole vocabulary.
constexpr int kMaxHeapK = 256;
// First guess of top_p: tokens less likely than e^-9 of the best are rarely in the nucleus.
constexpr double kNucleusGuess = -9.0;

bool InVocabulary(TokenId id, size_t vocab_size) {
  return id >= 0 && static_cast<size_t>(id) < vocab_size;
}

double Max(std::span<const double> values) {
  double max = kRuledOut;
  for (double v : values) max = v > max ? v : max;
  return max;
}

// Higher score first, then lower id.
bool RanksBefore(const std::pair<double, TokenId>& a, const std::pair<double, TokenId>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

Filters::Filters(int vocab_size) : scores_(vocab_size), allowed_(vocab_size) {
  survivors_.reserve(vocab_size);
  ranked_.reserve(vocab_size);
}

bool Filters::ChangesLogits(const FilterInput& input) {
  const SamplingParams& p = input.params;
  return !p.allowed_token_ids.empty() || input.num_output_tokens < p.min_tokens ||
         !p.logit_bias.empty() || input.counts.enabled();
}

void Filters::RuleOut(const FilterInput& input) {
  const SamplingParams& p = input.params;
  if (!p.allowed_token_ids.empty()) {
    std::fill(allowed_.begin(), allowed_.end(), 0);
    for (TokenId id : p.allowed_token_ids) {
      if (InVocabulary(id, scores_.size())) allowed_[id] = 1;
    }
    for (size_t i = 0; i < scores_.size(); ++i) scores_[i] = allowed_[i] ? scores_[i] : kRuledOut;
  }
  if (input.num_output_tokens < p.min_tokens) {
    for (TokenId id : p.stop_token_ids) {
      if (InVocabulary(id, scores_.size())) scores_[id] = kRuledOut;
    }
  }
}

void Filters::Penalize(const FilterInput& input) {
  const SamplingParams& p = input.params;
  for (const auto& [id, count] : input.counts.counts()) {
    if (!InVocabulary(id, scores_.size())) continue;
    double& s = scores_[id];
    if (count.in_prompt || count.output > 0) {
      s = s > 0 ? s / double{p.repetition_penalty} : s * double{p.repetition_penalty};
    }
    if (count.output > 0) {
      s -= double{p.frequency_penalty} * count.output + double{p.presence_penalty};
    }
  }
}

std::span<const double> Filters::Process(const FilterInput& input) {
  std::copy(input.logits.begin(), input.logits.end(), scores_.begin());
  if (!ChangesLogits(input)) return scores_;
  RuleOut(input);
  for (const auto& [id, bias] : input.params.logit_bias) {
    if (!InVocabulary(id, scores_.size())) continue;
    scores_[id] += std::clamp(bias, -kMaxLogitBias, kMaxLogitBias);
  }
  if (input.counts.enabled()) Penalize(input);
  if (!(Max(scores_) > kRuledOut)) {
    std::copy(input.logits.begin(), input.logits.end(), scores_.begin());
  }
  return scores_;
}

Filters::Result Filters::Apply(const FilterInput& input) {
  const SamplingParams& p = input.params;
  Process(input);
  survivors_.clear();
  const double temperature = p.temperature;
  for (double& s : scores_) s /= temperature;
  const auto vocab_size = static_cast<int>(scores_.size());
  if (p.min_p > 0) {
    const double threshold = Max(scores_) + ExactLog(p.min_p);
    for (double& s : scores_) s = s < threshold ? kRuledOut : s;
  }
  if (p.top_k > 0 && p.top_k < vocab_size) KeepTopK(p.top_k);
  if (p.top_p < 1) KeepTopP(p.top_p);
  return {.scores = scores_, .survivors = survivors_};
}

void Filters::CollectSurvivors(double threshold) {
  survivors_.clear();
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (scores_[i] >= threshold && scores_[i] > kRuledOut) {
      survivors_.push_back(static_cast<TokenId>(i));
    } else {
      scores_[i] = kRuledOut;
    }
  }
}

void Filters::KeepTopK(int k) {
  double threshold;
  if (k <= kMaxHeapK) {
    heap_.assign(scores_.begin(), scores_.begin() + k);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    for (size_t i = k; i < scores_.size(); ++i) {
      if (!(scores_[i] > heap_.front())) continue;
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.back() = scores_[i];
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    threshold = heap_.front();
  } else {
    heap_.assign(scores_.begin(), scores_.end());
    std::nth_element(heap_.begin(), heap_.begin() + (k - 1), heap_.end(), std::greater<>());
    threshold = heap_[k - 1];
  }
  CollectSurvivors(threshold);
}

// Orders ranked_ so that the nucleus comes first, and returns its size: a weighted quickselect,
// since near-flat distributions have nuclei of tens of thousands of tokens.
size_t Filters::NucleusSize(double mass, double max) {
  constexpr size_t kSortBelow = 32;
  size_t begin = 0, end = ranked_.size();
  double before = 0;  // probability (times the total) of ranked_[0, begin), all in the nucleus
  while (end - begin > kSortBelow) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(ranked_.begin() + begin, ranked_.begin() + middle, ranked_.begin() + end,
                     RanksBefore);
    double upper = 0;
    for (size_t i = begin; i < middle; ++i) upper += ExactExp(ranked_[i].first - max);
    if (before + upper < mass) {
      before += upper;
      begin = middle;
    } else {
      end = middle;
    }
  }
  std::sort(ranked_.begin() + begin, ranked_.begin() + end, RanksBefore);
  size_t size = begin;
  while (size < end && (size == 0 || before < mass)) {
    before += ExactExp(ranked_[size].first - max);
    ++size;
  }
  return size;
}

// Keeps the most likely tokens until those before a token hold top_p of the probability. That is
// the ascending rule of vLLM ("drop while the cumulative sum <= 1 - top_p, never the largest")
// read from the other end, so that only the nucleus needs sorting.
void Filters::KeepTopP(double top_p) {
  if (survivors_.empty()) CollectSurvivors(kRuledOut);
  double max = kRuledOut;
  for (TokenId id : survivors_) max = std::max(max, scores_[id]);
  double total = 0;
  for (TokenId id : survivors_) total += ExactExp(scores_[id] - max);

  const auto rank_from = [&](double threshold) {
    ranked_.clear();
    double mass = 0;
    for (TokenId id : survivors_) {
      if (scores_[id] < threshold) continue;
      ranked_.emplace_back(scores_[id], id);
      mass += ExactExp(scores_[id] - max);
    }
    return mass;
  };
  if (rank_from(max + kNucleusGuess) < top_p * total) rank_from(kRuledOut);
  const size_t kept = NucleusSize(top_p * total, max);
  for (TokenId id : survivors_) scores_[id] = kRuledOut;
  survivors_.clear();
  for (size_t i = 0; i < kept; ++i) {
    scores_[ranked_[i].second] = ranked_[i].first;
    survivors_.push_back(ranked_[i].second);
  }
  std::sort(survivors_.begin(), survivors_.end());
}

}  // namespace lynx
