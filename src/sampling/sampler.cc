// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/gumbel.h"

namespace lynx {
namespace {

template <typename T>
Choice Greedy(std::span<const T> logits) {
  TopTwo top;
  T second = -std::numeric_limits<T>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > second)) continue;
    top.Offer(logits[i], static_cast<TokenId>(i));
    second = static_cast<T>(top.second);
  }
  return top.choice(1.0);
}

TopTwo ChooseAmong(const Filters::Result& result, uint64_t seed, int64_t position) {
  TopTwo top;
  for (TokenId id : result.survivors) {
    const auto words = TokenNoise(seed, position, static_cast<uint32_t>(id) / 4);
    top.Offer(result.scores[id] + Gumbel(words[id % 4]), id);
  }
  return top;
}

// Most tokens of a vocabulary cannot win whatever their noise, or cannot with the noise they got;
// two bounds find that out before any logarithm is taken.
TopTwo ChooseDense(std::span<const double> scores, uint64_t seed, int64_t position) {
  TopTwo top;
  const size_t n = scores.size();
  for (size_t begin = 0; begin < n; begin += 4) {
    const size_t end = std::min(begin + 4, n);
    double group_max = TopTwo::kLowest;
    for (size_t i = begin; i < end; ++i) group_max = std::max(group_max, scores[i]);
    if (!(group_max + kMaxGumbel > top.second)) continue;
    const auto words = TokenNoise(seed, position, static_cast<uint32_t>(begin / 4));
    for (size_t i = begin; i < end; ++i) {
      if (!(scores[i] + GumbelBound(words[i - begin]) > top.second)) continue;
      top.Offer(scores[i] + Gumbel(words[i - begin]), static_cast<TokenId>(i));
    }
  }
  return top;
}

}  // namespace

double GumbelNoise(uint64_t seed, int64_t position, TokenId token) {
  return Gumbel(TokenNoise(seed, position, static_cast<uint32_t>(token) / 4)[token % 4]);
}

Choice Sampler::Choose(const FilterInput& input, int64_t position) {
  const SamplingParams& params = input.params;
  if (IsGreedy(params)) {
    return Filters::ChangesLogits(input) ? Greedy(filters_.Process(input)) : Greedy(input.logits);
  }
  const Filters::Result result = filters_.Apply(input);
  const TopTwo top = result.survivors.empty() ? ChooseDense(result.scores, params.seed, position)
                                              : ChooseAmong(result, params.seed, position);
  return top.choice(params.temperature);
}

std::optional<RowChoice> ChoiceOnDevice(const SamplingParams& params, const TokenCounts& counts,
                                        int64_t position) {
  const bool plain = params.allowed_token_ids.empty() && params.logit_bias.empty() &&
                     params.min_tokens == 0 && !counts.enabled() && params.num_logprobs < 0;
  const bool filtered = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  if (!plain || (filtered && !IsGreedy(params))) return std::nullopt;
  return RowChoice{
      .wanted = true, .temperature = params.temperature, .seed = params.seed, .position = position};
}

TokenOutput Logprobs(std::span<const float> logits, TokenId token, int top_n) {
  float max = -std::numeric_limits<float>::infinity();
  for (float l : logits) max = l > max ? l : max;
  double total = 0;
  for (float l : logits) total += ExactExp(double{l} - max);
  const double log_total = ExactLog(total) + max;
  const auto logprob = [&](TokenId id) { return static_cast<float>(logits[id] - log_total); };
  const auto before = [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };

  TokenOutput out{.id = token, .logprob = logprob(token), .rank = 1, .top = {}};
  const auto vocab_size = static_cast<TokenId>(logits.size());
  for (TokenId i = 0; i < vocab_size; ++i) out.rank += before(i, token) ? 1 : 0;

  // A heap of the best so far, the worst of them in front.
  const auto n = static_cast<size_t>(std::clamp<int>(top_n, 0, vocab_size));
  std::vector<TokenId> best;
  best.reserve(n + 1);
  for (TokenId i = 0; i < vocab_size && n > 0; ++i) {
    if (best.size() == n && !before(i, best.front())) continue;
    best.push_back(i);
    std::push_heap(best.begin(), best.end(), before);
    if (best.size() <= n) continue;
    std::pop_heap(best.begin(), best.end(), before);
    best.pop_back();
  }
  std::sort(best.begin(), best.end(), before);
  out.top.reserve(n);
  for (size_t i = 0; i < best.size(); ++i) {
    out.top.push_back(
        {.id = best[i], .logprob = logprob(best[i]), .rank = static_cast<int>(i) + 1});
  }
  return out;
}

}  // namespace lynx
