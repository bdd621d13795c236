// SPDX-License-Identifier: Apache-2.0
// The largest numbers that a model file may claim. Far above any model that exists, and small
// enough that their products stay inside 64 bits and that nothing sized by one of them hurts.
#pragma once

#include <cstdint>

namespace lynx {

inline constexpr int64_t kMaxNumLayers = 4096;
inline constexpr int64_t kMaxHiddenSize = 1 << 18;
inline constexpr int64_t kMaxIntermediateSize = 1 << 20;
inline constexpr int64_t kMaxNumHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxVocabSize = 1 << 24;
inline constexpr int64_t kMaxModelLen = 1 << 24;
inline constexpr double kMaxRopeFactor = 1e6;
inline constexpr double kMaxRopeTheta = 1e12;

}  // namespace lynx
