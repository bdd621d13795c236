// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lynx/backend.h"

namespace lynx {

// The unit of a weight format: so many consecutive elements of one row in so many bytes
// (ggml/src/ggml-common.h). A row holds a whole number of them.
struct BlockShape {
  int elements = 1;
  int bytes = 0;
};

constexpr BlockShape WeightBlock(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return {1, 4};
    case WeightType::kF16:
    case WeightType::kBf16:
      return {1, 2};
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return {32, 18};
    case WeightType::kQ4_1:
      return {32, 20};
    case WeightType::kQ5_0:
      return {32, 22};
    case WeightType::kQ5_1:
      return {32, 24};
    case WeightType::kQ8_0:
      return {32, 34};
    case WeightType::kQ4_K:
      return {256, 144};
    case WeightType::kQ5_K:
      return {256, 176};
    case WeightType::kQ6_K:
      return {256, 210};
    case WeightType::kQ2_K:
      return {256, 84};
    case WeightType::kQ3_K:
      return {256, 110};
    case WeightType::kIQ4_XS:
      return {256, 136};
  }
  return {};
}

}  // namespace lynx
