// SPDX-License-Identifier: Apache-2.0
// Chooses a token from logits.
//
//   token = argmax over the filtered logits of  logit / temperature + Gumbel(seed, position, token)
//
// (docs/numerics.md, Sampling). The noise depends on nothing but its key, so a draft and its
// verification see the same noise and accepting means "equal". Greedy is argmax; ties go to the
// lowest id. The same bits give the same token on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lynx/choice.h"
#include "lynx/request.h"
#include "sampling/filters.h"
#include "sampling/token_counts.h"

namespace lynx {

// Gumbel noise of one token: -log(-log(u)), u in (0, 1) with 32 bits.
double GumbelNoise(uint64_t seed, int64_t position, TokenId token);

// One thread's sampler; owns scratch of the vocabulary's size.
class Sampler {
 public:
  explicit Sampler(int vocab_size) : filters_(vocab_size) {}

  // position: of the token that is being chosen, counted from the start of the prompt.
  Choice Choose(const FilterInput& input, int64_t position);

 private:
  Filters filters_;
};

// How a device makes the choice that Choose makes for these parameters, or nothing when more than
// temperature and noise has a say in it or its log-probability is wanted.
std::optional<RowChoice> ChoiceOnDevice(const SamplingParams& params, const TokenCounts& counts,
                                        int64_t position);

// Log-probabilities of the raw logits' softmax (before penalties and temperature, as vLLM).
// top_n: how many of the best are listed. Rank counts tokens with a higher logit, and those with
// an equal logit and a lower id, plus one.
TokenOutput Logprobs(std::span<const float> logits, TokenId token, int top_n);

}  // namespace lynx
