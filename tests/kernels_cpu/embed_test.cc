// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"

namespace lynx::cpu {
namespace {

using testing::ElementsAre;

TEST(EmbedTest, TakesRowsOfTheFile) {
  const float table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
  WeightView view{.type = WeightType::kF32,
                  .n = 3,
                  .k = 2,
                  .data = reinterpret_cast<const std::byte*>(table),
                  .row_bytes = sizeof(table[0])};
  auto backend = CpuBackend::Create({});
  ASSERT_NE(backend, nullptr);
  std::vector<float> out(8);
  const TokenId ids[] = {2, 0, 0, 1};
  backend->Embed(*backend->PackEmbedding(view), ids, out.data());
  EXPECT_THAT(out, ElementsAre(5, 6, 1, 2, 1, 2, 3, 4));

  const int32_t order[] = {1, 2, 0};
  view.row_order = order;
  backend->Embed(*backend->PackEmbedding(view), ids, out.data());
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4, 3, 4, 5, 6));
}

TEST(EmbedTest, DecodesQuantizedRows) {
  // Two rows of one Q8_0 block: scale 0.5 and codes i, then scale 2 and codes -i.
  std::byte table[2][34];
  const uint16_t scales[] = {0x3800, 0x4000};
  for (int r = 0; r < 2; ++r) {
    std::memcpy(table[r], &scales[r], 2);
    for (int i = 0; i < 32; ++i) table[r][2 + i] = std::byte(uint8_t(r == 0 ? i : -i));
  }
  const WeightView view{
      .type = WeightType::kQ8_0, .n = 2, .k = 32, .data = table[0], .row_bytes = 34};
  auto backend = CpuBackend::Create({});
  std::vector<float> out(64);
  const TokenId ids[] = {1, 0};
  backend->Embed(*backend->PackEmbedding(view), ids, out.data());
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i], -2.0f * float(i));
    EXPECT_EQ(out[32 + i], 0.5f * float(i));
  }
}

}  // namespace
}  // namespace lynx::cpu
