// SPDX-License-Identifier: Apache-2.0
//
// Each rank sums one slice of the elements and stores the sums with every rank: two barriers and no
// copies, every element read and written once per rank.
#include "kernels/cpu/thread_collective.h"

#include <algorithm>
#include <atomic>

#include "kernels/cpu/float_mode.h"

namespace lynx::cpu {
namespace {

// Two ranks on cores of their own reach a barrier within microseconds of each other.
constexpr int kSpins = 2000;
constexpr int64_t kSliceFloats = 16;  // slices begin on cache lines

struct Group {
  explicit Group(int num_ranks) : size(num_ranks), data(num_ranks), counts(num_ranks) {}

  // False when the group is aborted.
  bool Barrier();
  void Abort();

  const int size;
  std::vector<float*> data;     // [rank], of the call under way
  std::vector<int64_t> counts;  // [rank]
  alignas(64) std::atomic<int> num_arrived{0};
  alignas(64) std::atomic<uint32_t> generation{0};  // barriers passed; an abort counts too
  std::atomic<bool> aborted{false};
};

bool Group::Barrier() {
  const uint32_t seen = generation.load();
  if (num_arrived.fetch_add(1) + 1 == size) {
    num_arrived.store(0);
    generation.fetch_add(1);
    generation.notify_all();
    return !aborted.load();
  }
  for (int i = 0; i < kSpins && generation.load() == seen; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // Whoever reads `seen` after the abort has counted also sees the flag.
  while (generation.load() == seen && !aborted.load()) generation.wait(seen);
  return !aborted.load();
}

void Group::Abort() {
  aborted.store(true);
  generation.fetch_add(1);
  generation.notify_all();
}

class ThreadCollective final : public Collective {
 public:
  ThreadCollective(int rank, std::shared_ptr<Group> group)
      : rank_(rank), group_(std::move(group)) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  bool AllReduceSum(float* data, int64_t n) override;
  void Abort() override { group_->Abort(); }

 private:
  void SumSlice(int64_t begin, int64_t end) const;

  const int rank_;
  const std::shared_ptr<Group> group_;  // shared by its ranks, whichever ends last
};

bool ThreadCollective::AllReduceSum(float* data, int64_t n) {
  group_->data[rank_] = data;
  group_->counts[rank_] = n;
  if (!group_->Barrier()) return false;
  for (const int64_t count : group_->counts) {
    if (count == n) continue;
    Abort();
    return false;
  }
  const int64_t num_lines = (n + kSliceFloats - 1) / kSliceFloats;
  const auto slice = [&](int rank) {
    return std::min(n, num_lines * rank / group_->size * kSliceFloats);
  };
  SumSlice(slice(rank_), slice(rank_ + 1));
  return group_->Barrier();
}

void ThreadCollective::SumSlice(int64_t begin, int64_t end) const {
  ScopedFlushToZero flush_to_zero;
  constexpr int64_t kChunk = 1024;  // stays in the first cache
  float sum[kChunk];
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t m = std::min(kChunk, end - at);
    std::copy_n(group_->data[0] + at, m, sum);
    for (int r = 1; r < group_->size; ++r) {
      const float* x = group_->data[r] + at;
      for (int64_t i = 0; i < m; ++i) sum[i] += x[i];
    }
    for (float* out : group_->data) std::copy_n(sum, m, out + at);
  }
}

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeThreadCollectives(int size) {
  auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Collective>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadCollective>(r, group));
  return ranks;
}

}  // namespace lynx::cpu
