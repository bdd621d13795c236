// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/pack.h"

namespace lynx::cpu {

std::unique_ptr<Weight> CpuBackend::PackEmbedding(const WeightView& view) {
  return std::make_unique<RawWeight>(view);
}

void CpuBackend::Embed(const Weight& table, std::span<const TokenId> ids, float* out) {
  const auto& raw = static_cast<const RawWeight&>(table);
  for (const TokenId id : ids) {
    DequantizeRow(raw.type(), raw.row(id), raw.k(), out);
    out += raw.k();
  }
}

void CpuBackend::GatherRows(const float* x, std::span<const int32_t> rows, int dim, float* y) {
  for (const int32_t row : rows) y = std::copy_n(x + int64_t{row} * dim, dim, y);
}

}  // namespace lynx::cpu
