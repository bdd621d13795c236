// SPDX-License-Identifier: Apache-2.0
// One sequence of attention with random keys, values and queries.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <ostream>
#include <vector>

#include "tests/kernels_cpu/paged_kv.h"

namespace lynx::cpu {

struct Shape {
  KvDtype dtype = KvDtype::kBf16;
  int head_dim = 64;
  int num_heads = 6;
  int num_kv_heads = 2;
  int window = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << (s.dtype == KvDtype::kBf16 ? "bf16" : "f32") << " head_dim " << s.head_dim
             << " heads " << s.num_heads << "/" << s.num_kv_heads << " window " << s.window;
}

// One sequence of num_tokens tokens, all of which have keys and values; queries for all of them.
class Sequence {
 public:
  Sequence(const Shape& shape, int num_tokens, PagedKv& kv, uint32_t seed = 7)
      : shape_(shape), num_tokens_(num_tokens), kv_(kv), table_(kv.TakeBlocks(num_tokens)) {
    const size_t kv_size = size_t(num_tokens) * shape.num_kv_heads * shape.head_dim;
    k_ = RandomFloats(kv_size, seed);
    v_ = RandomFloats(kv_size, seed + 1);
    q_ = RandomFloats(row_size() * num_tokens, seed + 2, 2.0f);
    kv.Write(table_, k_, v_);
  }
  static KvLayout Layout(const Shape& s) {
    return {
        .num_layers = 2, .num_kv_heads = s.num_kv_heads, .head_dim = s.head_dim, .dtype = s.dtype};
  }

  size_t row_size() const { return size_t(shape_.num_heads) * shape_.head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  const std::vector<BlockId>& table() const { return table_; }
  std::vector<BlockId>& table() { return table_; }
  void WriteAgain() { kv_.Write(table_, k_, v_); }

  // The outputs of the last num_rows positions, computed as row groups of these sizes in one call.
  using Attention = std::function<void(const AttentionParams&)>;
  std::vector<float> Run(const Attention& attention, const std::vector<int>& group_sizes) const {
    const int num_rows = std::accumulate(group_sizes.begin(), group_sizes.end(), 0);
    std::vector<float> out(num_rows * row_size(), std::numeric_limits<float>::quiet_NaN());
    std::vector<RowGroup> groups;
    int row = 0;
    for (int n : group_sizes) {
      groups.push_back({.row_begin = row,
                        .num_rows = n,
                        .position = num_tokens_ - num_rows + row,
                        .block_table = table_.data()});
      row += n;
    }
    attention(Params(num_rows, out, groups));
    return out;
  }
  std::vector<float> Run(CpuBackend& backend, const std::vector<int>& group_sizes) const {
    return Run([&](const AttentionParams& params) { backend.Attention(params); }, group_sizes);
  }
  std::vector<float> Run(CpuBackend& backend, int num_rows) const {
    return Run(backend, std::vector<int>{num_rows});
  }
  AttentionParams Params(int num_rows, std::vector<float>& out,
                         const std::vector<RowGroup>& groups) const {
    return {.q = q_.data() + (num_tokens_ - num_rows) * row_size(),
            .out = out.data(),
            .num_heads = shape_.num_heads,
            .layer = 1,
            .scale = scale(),
            .sliding_window = shape_.window,
            .pool = kv_.view(),
            .groups = groups};
  }

  // Output of one position and head in float64 from what the pool holds, and the error that the
  // formats allow it.
  void Exact(int position, int head, std::vector<double>& out, double& bound) const;

 private:
  double Element(KvKind kind, int position, int head, int c) const {
    const int slot = position % kBlockSize;
    const int element = kind == KvKind::kKey ? c * kBlockSize + slot : slot * shape_.head_dim + c;
    return kv_.At(table_[position / kBlockSize], 1, kind,
                  head / (shape_.num_heads / shape_.num_kv_heads), element);
  }

  Shape shape_;
  int num_tokens_;
  PagedKv& kv_;
  std::vector<BlockId> table_;
  std::vector<float> k_, v_, q_;
};

inline void Sequence::Exact(int position, int head, std::vector<double>& out, double& bound) const {
  const bool bf16 = shape_.dtype == KvDtype::kBf16;
  const int begin = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
  const int head_dim = shape_.head_dim;
  std::vector<double> x;
  double max = -std::numeric_limits<double>::infinity(), max_abs_sum = 0, max_v = 0, sum = 0;
  for (int t = begin; t <= position; ++t) {
    double dot = 0, abs_sum = 0;
    for (int c = 0; c < head_dim; ++c) {
      float q = q_[position * row_size() + size_t(head) * head_dim + c];
      if (bf16) q = ToFloat(ToBf16(q));
      const double product = q * Element(KvKind::kKey, t, head, c);
      dot += product;
      abs_sum += std::abs(product);
    }
    x.push_back(dot * scale());
    max = std::max(max, x.back());
    max_abs_sum = std::max(max_abs_sum, abs_sum * scale());
  }
  out.assign(head_dim, 0.0);
  for (int t = begin; t <= position; ++t) {
    const double p = std::exp(x[t - begin] - max);
    sum += p;
    for (int c = 0; c < head_dim; ++c) {
      const double v = Element(KvKind::kValue, t, head, c);
      max_v = std::max(max_v, std::abs(v));
      out[c] += p * v;
    }
  }
  for (double& o : out) o /= sum;
  // A relative error e of every p moves the mean by at most 2 e max|v|. e: the score's rounding
  // (head_dim + 2 operations), exp itself, and BF16's half unit, 2^-9. Then the sums over tokens.
  const double eps = std::ldexp(1.0, -24);
  const double p_error = (head_dim + 2) * eps * max_abs_sum + 8 * eps * (1 + std::abs(max)) +
                         (bf16 ? std::ldexp(1.0, -9) : 0.0);
  bound = (2 * p_error + 2 * (x.size() + 32) * eps) * max_v;
}

}  // namespace lynx::cpu
