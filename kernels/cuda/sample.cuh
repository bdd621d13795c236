// SPDX-License-Identifier: Apache-2.0
// The token after each row of logits, chosen as sampling/sampler.h does without filters: the same
// token and the same margin, bit for bit. Float64 throughout; a maximum has no order, so the
// vocabulary may be cut in any way.
//
// A block takes a slice of one row; a thread groups of four tokens, which share one call of the
// noise. It keeps the best and the second best of what it saw, and most tokens are passed over by
// two bounds before any logarithm. A second kernel joins the slices. Moves 4 bytes per logit.
#pragma once

#include "kernels/common/gumbel.h"
#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct SampleArgs {
  Global<const float> logits;  // [rows, ld]
  int64_t ld = 0;
  int vocab_size = 0;
  int slices = 0;
  Global<const RowChoice> params;  // [rows]
  Global<TopTwo> tops;             // [rows, slices]
  Global<Choice> choices;          // [rows]
};

inline constexpr int kSampleThreads = 256;
inline constexpr int kSampleSlice = 8192;  // tokens of a block
inline constexpr int kTokensPerNoise = 4;

// Joins the tops of a warp in all of its lanes.
__device__ inline TopTwo JoinWarp(TopTwo top) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const TopTwo other = {.best = __shfl_xor_sync(kFullMask, top.best, distance),
                          .second = __shfl_xor_sync(kFullMask, top.second, distance),
                          .token = __shfl_xor_sync(kFullMask, top.token, distance)};
    top.Offer(other);
  }
  return top;
}

// The four tokens from `first` on.
__device__ inline void OfferGroup(const SampleArgs& args, const RowChoice& row,
                                  Global<const float> logits, int first, TopTwo& top) {
  const bool greedy = row.temperature < kGreedyTemperature;
  double scores[kTokensPerNoise];
  double max = TopTwo::kLowest;
#pragma unroll
  for (int i = 0; i < kTokensPerNoise; ++i) {
    scores[i] = TopTwo::kLowest;
    if (first + i >= args.vocab_size) continue;
    const float logit = logits[first + i];
    scores[i] = greedy ? double{logit} : double{logit} / double{row.temperature};
    max = max < scores[i] ? scores[i] : max;
  }
  if (!(max + (greedy ? 0.0 : kMaxGumbel) > top.second)) return;
  if (greedy) {
    for (int i = 0; i < kTokensPerNoise; ++i) top.Offer(scores[i], first + i);
    return;
  }
  const auto words =
      TokenNoise(row.seed, row.position, static_cast<uint32_t>(first / kTokensPerNoise));
#pragma unroll
  for (int i = 0; i < kTokensPerNoise; ++i) {
    if (!(scores[i] + GumbelBound(words[i]) > top.second)) continue;
    top.Offer(scores[i] + Gumbel(words[i]), first + i);
  }
}

// budget: SampleSliceKernel registers 80 shared 160 threads 256
__global__ void __launch_bounds__(kSampleThreads) SampleSliceKernel(SampleArgs args) {
  constexpr int kWarps = kSampleThreads / kWarpSize;
  LYNX_SHARED(double, warp_scores, 2 * kWarps);
  LYNX_SHARED(TokenId, warp_tokens, kWarps);
  const RowChoice row = args.params[blockIdx.y];
  if (!row.wanted) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int begin = static_cast<int>(blockIdx.x) * kSampleSlice;
  const int end = begin + kSampleSlice < args.vocab_size ? begin + kSampleSlice : args.vocab_size;
  const Global<const float> logits = args.logits + blockIdx.y * args.ld;
  TopTwo top;
  for (int first = begin + thread * kTokensPerNoise; first < end;
       first += kSampleThreads * kTokensPerNoise) {
    OfferGroup(args, row, logits, first, top);
  }
  top = JoinWarp(top);
  const int warp = thread / kWarpSize;
  if (thread % kWarpSize == 0) {
    warp_scores[2 * warp] = top.best;
    warp_scores[2 * warp + 1] = top.second;
    warp_tokens[warp] = top.token;
  }
  __syncthreads();
  if (thread != 0) return;
  for (int w = 1; w < kWarps; ++w) {
    top.Offer(TopTwo{
        .best = warp_scores[2 * w], .second = warp_scores[2 * w + 1], .token = warp_tokens[w]});
  }
  args.tops[blockIdx.y * args.slices + blockIdx.x] = top;
}

// One warp a row.
// budget: SampleJoinKernel registers 48 shared 0 threads 32
__global__ void __launch_bounds__(kWarpSize) SampleJoinKernel(SampleArgs args) {
  const RowChoice row = args.params[blockIdx.x];
  if (!row.wanted) return;
  TopTwo top;
  for (int i = static_cast<int>(threadIdx.x); i < args.slices; i += kWarpSize) {
    const TopTwo slice = args.tops[blockIdx.x * args.slices + i];
    top.Offer(slice);
  }
  top = JoinWarp(top);
  if (threadIdx.x != 0) return;
  const bool greedy = row.temperature < kGreedyTemperature;
  args.choices[blockIdx.x] = top.choice(greedy ? 1.0 : double{row.temperature});
}

}  // namespace lynx::cuda
