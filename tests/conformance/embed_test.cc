// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/embed.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/gather_rows.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::Bits;
using cpu::Matrix;
using cpu::RandomRows;

class EmbedTest : public DeviceTest {};

TEST_F(EmbedTest, EveryFormatHasTheCpusBits) {
  const std::vector<TokenId> ids = {4, 0, 4, 2, 1, 3};
  for (WeightType type : cpu::kAllTypes) {
    const int block = WeightBlock(type).elements;
    for (int64_t k : {block == 1 ? 75 : block, 2 * 256 + block}) {
      const Matrix table(type, 5, k, 9);
      const WeightView host = table.view();
      DeviceArray<std::byte> bytes(
          std::vector<std::byte>(host.data, host.data + host.n * host.row_bytes));
      WeightView view = host;
      view.data = bytes.data();
      DeviceArray<TokenId> device_ids(ids);
      DeviceArray<float> out(ids.size() * k);
      Embed(stream(), view, device_ids.data(), static_cast<int>(ids.size()), out.data());

      std::vector<float> want;
      for (TokenId id : ids) {
        const std::vector<float> row = table.Row(id);
        want.insert(want.end(), row.begin(), row.end());
      }
      ASSERT_EQ(Bits(out.Download()), Bits(want)) << "type " << int(type) << ", k " << k;
    }
  }
}

TEST_F(EmbedTest, GathersRows) {
  const std::vector<int32_t> rows = {6, 0, 6, 3};
  for (int dim : {1, 255, 256, 600}) {
    const std::vector<float> x = RandomRows(7, dim, 4);
    DeviceArray<float> device_x(x), y(rows.size() * dim);
    DeviceArray<int32_t> device_rows(rows);
    GatherRows(stream(), device_x.data(), device_rows.data(), static_cast<int>(rows.size()), dim,
               y.data());
    std::vector<float> want;
    for (int row : rows) want.insert(want.end(), &x[row * dim], &x[row * dim] + dim);
    ASSERT_EQ(Bits(y.Download()), Bits(want)) << dim;
  }
}

}  // namespace
}  // namespace lynx::cuda
