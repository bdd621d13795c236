// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/step_staging.h"

namespace lynx::cuda {

AttentionLimits AttentionLimitsOf(const StepLimits& limits) {
  return {.max_rows = limits.max_rows,
          .max_groups = limits.max_rows,
          .max_position = limits.max_position,
          .num_heads = limits.num_heads,
          .num_kv_heads = limits.num_kv_heads,
          .head_dim = limits.head_dim};
}

StepStaging::StepStaging(const StepLimits& limits)
    : limits_(limits), wide_attention_(HasWideAttention(limits.head_dim)) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  ArrayOffsets offsets;
  offset_.tokens = offsets.Add<TokenId>(rows);
  offset_.positions = offsets.Add<int32_t>(rows);
  offset_.slots = offsets.Add<int32_t>(rows);
  offset_.logit_rows = offsets.Add<int32_t>(rows);
  offset_.choices = offsets.Add<RowChoice>(rows);
  offset_.attention = offsets.Add<std::byte>(AttentionWorkBytes(AttentionLimitsOf(limits)));
  capacity_ = offsets.bytes();
  device_ = AllocateDevice(capacity_);
  pinned_ = AllocatePinned(capacity_);
}

std::unique_ptr<StepStaging> StepStaging::Create(const StepLimits& limits) {
  std::unique_ptr<StepStaging> staging(new StepStaging(limits));
  if (staging->device_ == nullptr || staging->pinned_ == nullptr) return nullptr;
  return staging;
}

void StepStaging::PutSlots(std::span<const RowGroup> groups) {
  auto* slots = ArrayAt<int32_t>(pinned_.get(), offset_.slots);
  for (const RowGroup& group : groups) {
    for (int i = 0; i < group.num_rows; ++i) {
      const int position = group.position + i;
      slots[group.row_begin + i] =
          group.block_table[position / kBlockSize] * kBlockSize + position % kBlockSize;
    }
  }
}

void StepStaging::Stage(const Stream& stream, const ForwardBatch& batch) {
  batch_ = batch;
  const auto put = [this](size_t offset, const auto& values) {
    std::ranges::copy(values,
                      ArrayAt<std::remove_cvref_t<decltype(values[0])>>(pinned_.get(), offset));
  };
  put(offset_.tokens, batch.tokens);
  put(offset_.positions, batch.positions);
  put(offset_.logit_rows, batch.logit_rows);
  put(offset_.choices, batch.choices);
  PutSlots(batch.groups);
  plan_.Make(batch.groups, limits_.num_heads, limits_.num_kv_heads, limits_.sliding_window,
             {.wide = wide_attention_});
  attention_ = plan_.Pack(pinned_.get() + offset_.attention, device_.get() + offset_.attention);
  stream.Copy(device_.get(), pinned_.get(), offset_.attention + plan_.bytes(),
              cudaMemcpyHostToDevice);
}

}  // namespace lynx::cuda
