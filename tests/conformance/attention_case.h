// SPDX-License-Identifier: Apache-2.0
// One sequence for tests of attention on a device: its KV in scattered blocks of a pool full of
// garbage, queries for its last positions, and what its attention may be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "kernels/common/math_ref.h"
#include "kernels/cpu/attention.h"
#include "kernels/cuda/attention.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/paged_kv.h"

namespace lynx::cuda {

struct AttentionCase {
  int head_dim = 64;
  int num_heads = 3;
  int num_kv_heads = 1;
  int window = 0;
  int num_tokens = 0;
  int num_rows = 1;  // the last ones have queries

  int row_size() const { return num_heads * head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  KvLayout layout() const {
    return {.num_layers = 2, .num_kv_heads = num_kv_heads, .head_dim = head_dim};
  }
};

inline std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  return out << "head_dim " << c.head_dim << " heads " << c.num_heads << "/" << c.num_kv_heads
             << " window " << c.window << " tokens " << c.num_tokens << " rows " << c.num_rows;
}

// What a pair's outputs are in exact arithmetic with the formats' roundings, and how far from that
// a kernel may be.
struct Expected {
  std::vector<double> out;
  std::vector<double> bound;
};

class AttentionSequence {
 public:
  explicit AttentionSequence(const AttentionCase& c, uint32_t seed = 7)
      : case_(c), kv_(c.layout(), c.num_tokens / kBlockSize + 4, seed) {
    table_ = kv_.TakeBlocks(c.num_tokens);
    const size_t kv_size = size_t(c.num_tokens) * c.num_kv_heads * c.head_dim;
    k_ = cpu::RandomFloats(kv_size, seed);
    v_ = cpu::RandomFloats(kv_size, seed + 1);
    q_ = cpu::RandomFloats(size_t(c.num_rows) * c.row_size(), seed + 2);
    kv_.Write(table_, k_, v_);
  }

  const AttentionCase& shape() const { return case_; }
  std::vector<BlockId>& table() { return table_; }
  const std::vector<BlockId>& table() const { return table_; }
  const std::vector<float>& q() const { return q_; }
  const KvPoolView& pool() const { return kv_.view(); }
  std::vector<std::byte> PoolBytes() const {
    const std::byte* base = pool().base;
    return {base, base + pool().layout.block_bytes() * pool().num_blocks};
  }
  void ChangeGarbage() {
    kv_.FillWithGarbage(99);
    kv_.Write(table_, k_, v_);
  }

  // All rows as groups of these sizes.
  std::vector<RowGroup> Groups(const std::vector<int>& sizes) const {
    std::vector<RowGroup> groups;
    int row = 0;
    for (int n : sizes) {
      groups.push_back({.row_begin = row,
                        .num_rows = n,
                        .position = case_.num_tokens - case_.num_rows + row,
                        .block_table = table_.data()});
      row += n;
    }
    EXPECT_EQ(row, case_.num_rows);
    return groups;
  }
  std::vector<RowGroup> Groups() const { return Groups({case_.num_rows}); }

  std::vector<float> Reference() const {
    std::vector<float> out(q_.size());
    const std::vector<RowGroup> groups = Groups();
    const AttentionParams params{.q = q_.data(),
                                 .out = out.data(),
                                 .num_heads = case_.num_heads,
                                 .layer = 1,
                                 .scale = case_.scale(),
                                 .sliding_window = case_.window,
                                 .pool = pool(),
                                 .groups = groups};
    for (int row = 0; row < case_.num_rows; ++row) {
      for (int head = 0; head < case_.num_heads; ++head) {
        cpu::AttentionRowRef(params, groups[0], row, head);
      }
    }
    return out;
  }

  Expected Expect(int row, int head) const;

 private:
  // A query times a key, and how far a kernel's score may be from that.
  struct Score {
    double x;
    double error;
  };
  Score ExactScore(int row, int head, int t) const;
  double Element(KvKind kind, int position, int head, int c) const {
    const int slot = position % kBlockSize;
    const int element = kind == KvKind::kKey ? c * kBlockSize + slot : slot * case_.head_dim + c;
    return kv_.At(table_[position / kBlockSize], 1, kind,
                  head / (case_.num_heads / case_.num_kv_heads), element);
  }

  AttentionCase case_;
  cpu::PagedKv kv_;
  std::vector<BlockId> table_;
  std::vector<float> k_, v_, q_;
};

// A unit of error per FP32 operation: tensor cores may truncate where others round.
inline constexpr double kUnit = 0x1p-23;

inline AttentionSequence::Score AttentionSequence::ExactScore(int row, int head, int t) const {
  double dot = 0, sum_of_magnitudes = 0;
  for (int c = 0; c < case_.head_dim; ++c) {
    const double product =
        ToFloat(ToBf16(q_[size_t(row) * case_.row_size() + head * case_.head_dim + c])) *
        Element(KvKind::kKey, t, head, c);
    dot += product;
    sum_of_magnitudes += std::abs(product);
  }
  return {dot * case_.scale(), (case_.head_dim + 1) * kUnit * sum_of_magnitudes * case_.scale()};
}

// Two kernels that follow attention.h in different orders of summation differ where it counts only
// by a p that falls on the other side of a BF16 rounding boundary. p_t = exp(x_t - m) is off by a
// factor within 1 ± r, r = the errors of x_t and of m (a score itself) and that of exp. Where
// p (1 - r) and p (1 + r) round to the same number, p is that number; elsewhere it may be either,
// which moves the output by their distance times |v_t - out| / Σ p. All else is relative: a block's
// weight against the others' is off by the errors of two maxima, and sums, rescalings and merges
// add a unit per operation.
inline Expected AttentionSequence::Expect(int row, int head) const {
  const int position = case_.num_tokens - case_.num_rows + row, head_dim = case_.head_dim;
  const auto [begin, end] = cpu::Visible(position, case_.window);
  std::vector<Score> scores;
  double max = -std::numeric_limits<double>::infinity(), max_error = 0;
  for (int t = begin; t < end; ++t) {
    scores.push_back(ExactScore(row, head, t));
    max = std::max(max, scores.back().x);
    max_error = std::max(max_error, scores.back().error);
  }
  double sum = 0, sum_slack = 0, running = 0;
  std::vector<double> out(head_dim), slack(head_dim), magnitude(head_dim);
  for (int t = begin; t < end; ++t) {
    if (t == begin || t % cpu::kSegmentTokens == 0) {
      running = -std::numeric_limits<double>::infinity();
    }
    if (t == begin || t % kBlockSize == 0) {
      for (int u = t; u < std::min((t / kBlockSize + 1) * kBlockSize, end); ++u) {
        running = std::max(running, scores[u - begin].x);
      }
    }
    const double x = scores[t - begin].x, p = std::exp(x - running);
    const double r = scores[t - begin].error + max_error + (4 + std::abs(x - running)) * kUnit;
    const auto rounded = [](double v) { return double{ToFloat(ToBf16(static_cast<float>(v)))}; };
    const double factor = std::exp(running - max), weight = rounded(p) * factor;
    const double distance = (rounded(p * (1 + r)) - rounded(p * (1 - r))) * factor;
    sum += weight;
    sum_slack += distance;
    for (int c = 0; c < head_dim; ++c) {
      const double v = Element(KvKind::kValue, t, head, c);
      out[c] += weight * v;
      slack[c] += distance * std::abs(v);
      magnitude[c] += weight * std::abs(v);
    }
  }
  const int num_blocks = (end - 1) / kBlockSize - begin / kBlockSize + 1;
  const double relative = 2 * max_error + (kBlockSize + 16 + 8 * num_blocks) * kUnit;
  Expected expected{.out = out, .bound = slack};
  for (int c = 0; c < head_dim; ++c) {
    expected.out[c] /= sum;
    expected.bound[c] = (slack[c] + std::abs(expected.out[c]) * sum_slack) / sum +
                        relative * (magnitude[c] / sum + std::abs(expected.out[c]));
  }
  return expected;
}

inline void ExpectClose(const AttentionSequence& sequence, const std::vector<float>& got) {
  const AttentionCase& c = sequence.shape();
  for (int row = 0; row < c.num_rows; row = row + 1 < 4 ? row + 1 : row + 7) {
    for (int head = 0; head < c.num_heads; ++head) {
      const Expected want = sequence.Expect(row, head);
      for (int i = 0; i < c.head_dim; ++i) {
        ASSERT_NEAR(got[size_t(row) * c.row_size() + head * c.head_dim + i], want.out[i],
                    want.bound[i])
            << c << ": row " << row << ", head " << head << ", channel " << i;
      }
    }
  }
}

// A plan and what it needs in device memory.
class PlannedAttention {
 public:
  PlannedAttention(const AttentionCase& c, const std::vector<RowGroup>& groups,
                   AttentionPlanOptions options)
      : plan_(MakePlan(c, groups, options)),
        device_(std::max<size_t>(plan_.bytes(), 1)),
        scratch_(plan_.num_slots() * c.num_kv_heads * (c.head_dim + 2) + 1) {
    std::vector<std::byte> host(plan_.bytes());
    work_ = plan_.Pack(host.data(), device_.data());
    if (!host.empty()) device_.Upload(host);
  }
  const AttentionWork& work() const { return work_; }
  float* scratch() { return scratch_.data(); }

 private:
  static AttentionPlan MakePlan(const AttentionCase& c, const std::vector<RowGroup>& groups,
                                AttentionPlanOptions options) {
    AttentionPlan plan;
    plan.Make(groups, c.num_heads, c.num_kv_heads, c.window, options);
    return plan;
  }

  AttentionPlan plan_;
  DeviceArray<std::byte> device_;
  DeviceArray<float> scratch_;
  AttentionWork work_;
};

}  // namespace lynx::cuda
