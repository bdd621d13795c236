// SPDX-License-Identifier: Apache-2.0
#include "app/build_engine.h"

#include <gtest/gtest.h>

namespace lynx {
namespace {

TEST(BuildEngineTest, TheNameOfAModelIsThatOfItsFiles) {
  EXPECT_EQ(DefaultModelName("models/Qwen3-0.6B/"), "Qwen3-0.6B");
  EXPECT_EQ(DefaultModelName("Qwen3-0.6B"), "Qwen3-0.6B");
  EXPECT_EQ(DefaultModelName("models/a-1.5b.Q4_K_M.gguf"), "a-1.5b.Q4_K_M");
  EXPECT_EQ(DefaultModelName("models/a-7b-q4_k_m-00001-of-00002.gguf"), "a-7b-q4_k_m");
  EXPECT_EQ(DefaultModelName("-00001-of-00002.gguf"), "-00001-of-00002");
}

}  // namespace
}  // namespace lynx
