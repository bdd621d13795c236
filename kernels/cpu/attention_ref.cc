// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/math_ref.h"
#include "kernels/cpu/attention.h"

namespace lynx::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float Decode(Bf16 x) { return ToFloat(x); }
float Decode(float x) { return x; }

template <typename T>
float Rounded(float x) {
  if constexpr (std::is_same_v<T, Bf16>) return ToFloat(ToBf16(x));
  return x;
}

// Σ a[i] · b[i · stride] over n elements, in the order of attention.h.
template <typename T>
float Product(const float* a, const T* b, size_t stride, int n) {
  const auto chain = [&](int begin, int end, int step) {
    float c = 0;
    for (int i = begin; i < end; i += step) c = std::fma(a[i], Decode(b[i * stride]), c);
    return c;
  };
  if constexpr (std::is_same_v<T, float>) return chain(0, n, 1);
  float c = 0;
  for (int i = 0; i < n; i += 32) {
    const int end = std::min(i + 32, n);
    c += chain(i, end, 2) + chain(i + 1, end, 2);
  }
  return c;
}

// The state of online softmax over some of the keys.
struct Partial {
  explicit Partial(int head_dim) : out(head_dim) {}
  float max = kMinusInfinity;
  float sum = 0;
  std::vector<float> out;
};

template <typename T>
float SumByLane(const float (&p)[kBlockSize]) {
  float ordered[kBlockSize], lanes[kLanes] = {};
  for (int t = 0; t < kBlockSize; ++t) ordered[LanePosition<T>(t)] = p[t];
  for (int i = 0; i < kBlockSize; ++i) lanes[i % kLanes] += ordered[i];
  return SumLanesRef(lanes);
}

// Slots [begin, end) of the block are visible; at least one.
template <typename T>
void AddBlock(const float* q, float scale, const T* key, const T* value, int begin, int end,
              Partial& s) {
  const int head_dim = static_cast<int>(s.out.size());
  float x[kBlockSize], p[kBlockSize] = {};
  float max = s.max;
  for (int t = begin; t < end; ++t) {
    x[t] = Product(q, key + t, kBlockSize, head_dim) * scale;
    max = MaxRef(max, x[t]);
  }
  const float keep = ExpRef(s.max - max);
  for (int t = begin; t < end; ++t) p[t] = Rounded<T>(ExpRef(x[t] - max));
  s.max = max;
  s.sum = std::fma(s.sum, keep, SumByLane<T>(p));
  for (int c = 0; c < head_dim; ++c) {
    s.out[c] = std::fma(s.out[c], keep, Product(p, value + c, head_dim, kBlockSize));
  }
}

void Merge(const Partial& segment, Partial& total) {
  const float max = MaxRef(total.max, segment.max);
  const float a = ExpRef(total.max - max), b = ExpRef(segment.max - max);
  total.max = max;
  total.sum = std::fma(segment.sum, b, total.sum * a);
  for (size_t c = 0; c < total.out.size(); ++c) {
    total.out[c] = std::fma(segment.out[c], b, total.out[c] * a);
  }
}

template <typename T>
void AttendRow(const AttentionParams& params, const RowGroup& group, int row, int head) {
  const KvLayout& layout = params.pool.layout;
  const int head_dim = layout.head_dim;
  const int kv_head = head / (params.num_heads / layout.num_kv_heads);
  const size_t offset = (size_t(group.row_begin + row) * params.num_heads + head) * head_dim;
  const VisibleRange seen = Visible(group.position + row, params.sliding_window);

  std::vector<float> q(params.q + offset, params.q + offset + head_dim);
  for (float& x : q) x = Rounded<T>(x);
  Partial total(head_dim);
  for (int s = seen.begin / kSegmentTokens; s * kSegmentTokens < seen.end; ++s) {
    Partial segment(head_dim);
    for (int b = s * kSegmentBlocks; b < (s + 1) * kSegmentBlocks; ++b) {
      const int begin = std::max(seen.begin - b * kBlockSize, 0);
      const int end = std::min(seen.end - b * kBlockSize, kBlockSize);
      if (begin >= end) continue;
      const auto tile = [&](KvKind kind) {
        return reinterpret_cast<const T*>(
            params.pool.tile(group.block_table[b], params.layer, kind, kv_head));
      };
      AddBlock(q.data(), params.scale, tile(KvKind::kKey), tile(KvKind::kValue), begin, end,
               segment);
    }
    Merge(segment, total);
  }
  for (int c = 0; c < head_dim; ++c) params.out[offset + c] = total.out[c] / total.sum;
}

}  // namespace

void AttentionRowRef(const AttentionParams& params, const RowGroup& group, int row, int head) {
  if (params.pool.layout.dtype == KvDtype::kBf16) {
    AttendRow<Bf16>(params, group, row, head);
  } else {
    AttendRow<float>(params, group, row, head);
  }
}

}  // namespace lynx::cpu
