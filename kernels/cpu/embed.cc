// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/row_split.h"

namespace lynx::cpu {

std::unique_ptr<Weight> CpuBackend::PackEmbedding(const WeightView& view) {
  return std::make_unique<RawWeight>(view);
}

void CpuBackend::Embed(const Weight& table, std::span<const TokenId> ids, float* out) {
  const auto& raw = static_cast<const RawWeight&>(table);
  SplitRows(pool_, std::ssize(ids), raw.k(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      DequantizeRow(raw.type(), raw.row(ids[r]), raw.k(), out + r * raw.k());
    }
  });
}

void CpuBackend::GatherRows(const float* x, std::span<const int32_t> rows, int dim, float* y) {
  for (const int32_t row : rows) y = std::copy_n(x + int64_t{row} * dim, dim, y);
}

}  // namespace lynx::cpu
