// SPDX-License-Identifier: Apache-2.0
// Weights as the kernels read them.
#pragma once

#include <memory>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/weight_memory.h"
#include "lynx/backend.h"

namespace lynx::cpu {

// The type a matrix is kept in for Compute::kFast: BF16 for floats, the file's own for Q8_0, Q4_0
// and Q4_1, Q8_0 for the other block formats.
WeightType PackedType(WeightType file_type);

// A matrix in panels (gemm_kernels.h). Outputs past n and inputs past k are zero.
class PackedWeight final : public Weight {
 public:
  // To be filled. type is a PackedType. Null when there is not enough memory.
  static std::unique_ptr<PackedWeight> Make(WeightType type, int64_t n, int64_t k,
                                            WeightMemory& memory);
  // Of another one's packed bytes, which outlive it. Null when their number is not right.
  static std::unique_ptr<PackedWeight> Wrap(WeightType type, int64_t n, int64_t k,
                                            std::span<const std::byte> packed);

  int64_t n() const override { return n_; }
  int64_t k() const override { return k_; }
  WeightType type() const override { return type_; }
  size_t bytes() const override { return memory_ == nullptr ? 0 : size_; }
  std::span<const std::byte> packed() const override { return {data_, size_}; }

  size_t panel_stride() const { return panel_stride_; }  // bytes of a panel's codes
  size_t scale_stride() const { return scale_stride_; }  // bytes of a panel's scales, 0 for BF16
  const std::byte* panel(int64_t p) const { return data_ + p * panel_stride_; }
  const std::byte* panel_scales(int64_t p) const { return data_ + code_bytes_ + p * scale_stride_; }
  // Of its own memory.
  std::byte* panel(int64_t p) { return memory_.get() + p * panel_stride_; }
  std::byte* panel_scales(int64_t p) { return memory_.get() + code_bytes_ + p * scale_stride_; }

 private:
  PackedWeight(WeightType type, int64_t n, int64_t k);

  WeightType type_;
  int64_t n_, k_;
  size_t panel_stride_, scale_stride_, code_bytes_, size_;
  // Codes [panels][blocks of 32 inputs][lines of 64 bytes], then scales [panels][blocks][16]
  // binary16, for Q4_1 [panels][blocks][2][16]. 64-byte aligned.
  const std::byte* data_ = nullptr;
  std::shared_ptr<std::byte> memory_;  // shared by the weights of a run; null: data_ is another's
};

// Packs for Compute::kFast. The view's memory is not needed afterwards. Null when there is not
// enough memory.
std::unique_ptr<PackedWeight> PackForFast(ThreadPool& pool, const WeightView& view,
                                          WeightMemory& memory);
// The same in memory of its own.
inline std::unique_ptr<PackedWeight> PackForFast(ThreadPool& pool, const WeightView& view) {
  WeightMemory own;
  return PackForFast(pool, view, own);
}

// A matrix that is read where it lies, for Compute::kF32. The view's memory outlives it.
class RawWeight final : public Weight {
 public:
  explicit RawWeight(const WeightView& view) : view_(view) {}
  int64_t n() const override { return view_.n; }
  int64_t k() const override { return view_.k; }
  WeightType type() const override { return view_.type; }
  size_t bytes() const override { return 0; }
  const std::byte* row(int64_t output) const {
    const int64_t row = view_.row_order == nullptr ? output : view_.row_order[output];
    return view_.data + size_t(row) * view_.row_bytes;
  }

 private:
  WeightView view_;
};

}  // namespace lynx::cpu
