// SPDX-License-Identifier: Apache-2.0
// Acceptance by equality (speculation/acceptance.h) for many verifications at once. One warp a
// group: a lane looks at a row, a ballot finds the first that ends it. Moves 12 bytes per row.
#pragma once

#include "kernels/cuda/accept.h"
#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct AcceptArgs {
  Global<const VerifyGroup> groups;  // [num_groups]
  int num_groups = 0;
  Global<const TokenId> drafts;
  Global<const TokenId> stop_tokens;
  Global<const Choice> choices;
  Global<GroupAcceptance> results;  // [num_groups]
};

inline constexpr int kAcceptWarps = 4;

__device__ inline bool IsStop(const AcceptArgs& args, const VerifyGroup& group, TokenId token) {
  for (int i = 0; i < group.num_stop_tokens; ++i) {
    const TokenId stop = args.stop_tokens[group.stop_begin + i];
    if (stop == token) return true;
  }
  return false;
}

// budget: AcceptKernel registers 40 shared 0 threads 128
__global__ void __launch_bounds__(kAcceptWarps* kWarpSize) AcceptKernel(AcceptArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int index =
      static_cast<int>(blockIdx.x) * kAcceptWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (index >= args.num_groups) return;  // the whole warp
  const VerifyGroup group = args.groups[index];
  GroupAcceptance result;
  for (int first = 0; first < group.num_rows; first += kWarpSize) {
    const int row = first + lane;
    bool equal = false, last = false;
    TokenId token = 0;
    if (row < group.num_rows) {
      const Choice choice = args.choices[group.row_begin + row];
      token = choice.token;
      if (row < group.num_drafts) {
        const TokenId draft = args.drafts[group.draft_begin + row];
        equal = draft == token;
      }
      last = !equal || IsStop(args, group, token);
    }
    const unsigned ends = __ballot_sync(kFullMask, last);
    const unsigned accepted = __ballot_sync(kFullMask, equal);
    const int left = group.num_rows - first;
    const int count = ends != 0          ? __ffs(static_cast<int>(ends))
                      : left < kWarpSize ? left
                                         : kWarpSize;
    const unsigned seen = count == kWarpSize ? kFullMask : (1u << count) - 1;
    result.num_chosen += count;
    result.num_accepted += __popc(accepted & seen);
    result.next_token = __shfl_sync(kFullMask, token, count - 1);
    if (ends != 0) break;
  }
  if (lane == 0) args.results[index] = result;
}

}  // namespace lynx::cuda
