// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/stream.h"
#include "lynx/backend.h"

namespace lynx::cuda {

AttentionLimits AttentionLimitsOf(const StepLimits& limits);

// What the kernels of a step must know about its rows. Uploaded once per step, in one copy.
class StepStaging {
 public:
  // Null when there is not enough memory.
  static std::unique_ptr<StepStaging> Create(const StepLimits& limits);

  // The copy is queued. The step before has ended.
  void Stage(const Stream& stream, const ForwardBatch& batch);

  // As staged; host memory of the caller, to recognise it by.
  const ForwardBatch& batch() const { return batch_; }

  // Device pointers, valid until the next Stage.
  const TokenId* tokens() const { return At<TokenId>(offset_.tokens); }
  const int32_t* positions() const { return At<int32_t>(offset_.positions); }
  const int32_t* slots() const { return At<int32_t>(offset_.slots); }  // kv_write.h
  const int32_t* logit_rows() const { return At<int32_t>(offset_.logit_rows); }
  const RowChoice* choices() const { return At<RowChoice>(offset_.choices); }
  const AttentionWork& attention() const { return attention_; }

 private:
  explicit StepStaging(const StepLimits& limits);

  template <typename T>
  const T* At(size_t offset) const {
    return ArrayAt<const T>(device_.get(), offset);
  }
  void PutSlots(std::span<const RowGroup> groups);

  const StepLimits limits_;
  const bool wide_attention_;
  struct {
    size_t tokens = 0, positions = 0, slots = 0, logit_rows = 0, choices = 0, attention = 0;
  } offset_;  // the same on both sides
  size_t capacity_ = 0;
  DeviceMemory device_;
  PinnedMemory pinned_;
  ForwardBatch batch_;
  AttentionPlan plan_;
  AttentionWork attention_;
};

}  // namespace lynx::cuda
