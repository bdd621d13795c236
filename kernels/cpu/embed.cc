// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"

namespace lynx::cpu {

void CpuBackend::Embed(const WeightView& table, std::span<const TokenId> ids, float* out) {
  for (const TokenId id : ids) {
    const int64_t row = table.row_order == nullptr ? id : table.row_order[id];
    DequantizeRow(table.type, table.data + size_t(row) * table.row_bytes, table.k, out);
    out += table.k;
  }
}

}  // namespace lynx::cpu
