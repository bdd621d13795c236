// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

#include <algorithm>
#include <numeric>

#include "kv/block_pool.h"

namespace lynx {
namespace {

// A waiting sequence that so many later ones have overtaken holds the queue until it fits.
constexpr int kMaxTimesPassed = 32;
// Of the target time of a step, for prompts, even where the rest of the step leaves less.
constexpr double kLeastShare = 0.125;

}  // namespace

const Plan& Scheduler::Schedule(std::span<const RowRequest> requests, int num_free_blocks) {
  plan_.Clear();
  tokens_left_ = options_.max_num_batched_tokens;
  seatless_left_ = (options_.max_num_batched_tokens + 1) / 2;
  blocks_left_ = num_free_blocks;
  num_seated_ = static_cast<int>(std::count_if(requests.begin(), requests.end(),
                                               [](const RowRequest& r) { return r.takes_seat; }));
  queue_blocked_ = false;
  granted_rows_.assign(requests.size(), 0);
  preempted_.assign(requests.size(), false);
  order_.resize(requests.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int a, int b) {
    const RowRequest &x = requests[a], &y = requests[b];
    return x.phase != y.phase ? x.phase < y.phase : x.precedence < y.precedence;
  });

  for (int index : order_) {
    if (requests[index].phase >= Phase::kPrefill) break;
    ScheduleOne(requests, index);
  }
  prefill_left_ = BudgetForPrefill();
  SchedulePrefills(requests);
  return plan_;
}

void Scheduler::ScheduleOne(std::span<const RowRequest> requests, int index) {
  const RowRequest& r = requests[index];
  if (preempted_[index]) return;
  const int limit = r.takes_seat ? tokens_left_ : std::min(tokens_left_, seatless_left_);
  const int num_rows = std::min(r.num_rows, limit);
  if (num_rows <= 0) return;
  const int num_new_blocks = std::max(0, BlocksFor(r.position + num_rows) - r.num_blocks);
  if (!FindBlocks(requests, index, num_new_blocks)) return;
  blocks_left_ -= num_new_blocks;
  tokens_left_ -= num_rows;
  if (!r.takes_seat) seatless_left_ -= num_rows;
  granted_rows_[index] = num_rows;
  plan_.grants.push_back({.index = index, .num_rows = num_rows, .num_new_blocks = num_new_blocks});
}

// A sequence that cannot be preempted now will run, end, or become preemptible without anybody's
// help; waiting for it costs less than computing the asker again.
bool Scheduler::AnyLoading(std::span<const RowRequest> requests) const {
  return std::any_of(requests.begin(), requests.end(), [](const RowRequest& r) {
    return !r.preemptible && r.phase >= Phase::kDraft && r.num_blocks > 0;
  });
}

// One that is served first, being in an earlier phase, will not be so in every step.
bool Scheduler::AnyYoungerRuns(std::span<const RowRequest> requests, int index) const {
  for (size_t i = 0; i < requests.size(); ++i) {
    const RowRequest& r = requests[i];
    if (r.preemptible && granted_rows_[i] > 0 && requests[index].precedence < r.precedence) {
      return true;
    }
  }
  return false;
}

// Makes room by preemption. False: the asker gets nothing in this step, and may itself have been
// preempted. Drafts are not worth anybody's blocks.
bool Scheduler::FindBlocks(std::span<const RowRequest> requests, int index, int num_blocks) {
  while (blocks_left_ < num_blocks) {
    if (requests[index].phase == Phase::kDraft) return false;
    const int youngest = Youngest(requests);
    if (youngest < 0 || requests[youngest].precedence < requests[index].precedence) return false;
    if (youngest == index && (AnyLoading(requests) || AnyYoungerRuns(requests, index))) {
      return false;
    }
    preempted_[youngest] = true;
    plan_.preempted.push_back(youngest);
    blocks_left_ += requests[youngest].num_blocks;
    num_seated_ -= requests[youngest].takes_seat ? 1 : 0;
    if (youngest == index) return false;
  }
  return true;
}

// Of those that are preemptible and have no rows in this step yet, the last in precedence.
int Scheduler::Youngest(std::span<const RowRequest> requests) const {
  int youngest = -1;
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    if (!requests[i].preemptible || preempted_[i] || granted_rows_[i] > 0) continue;
    if (youngest < 0 || requests[youngest].precedence < requests[i].precedence) youngest = i;
  }
  return youngest;
}

Scheduler::PrefillBudget Scheduler::BudgetForPrefill() const {
  const bool others_run = !plan_.grants.empty();
  if (!others_run || options_.step_target_ns <= 0) {
    return {.rows = tokens_left_, .min_rows = tokens_left_};
  }
  const auto target_ns = static_cast<double>(options_.step_target_ns);
  return {.rows = std::min(tokens_left_, step_time_.max_known_rows()),
          .min_rows = 1,
          .ns = std::max(kLeastShare * target_ns, target_ns - step_time_.base_ns())};
}

int Scheduler::RowsWithin(const PrefillBudget& budget, int position, int num_rows) const {
  const int in_time = std::max(budget.min_rows, step_time_.RowsWithin(budget.ns, position));
  return std::min({num_rows, budget.rows, in_time});
}

void Scheduler::Spend(PrefillBudget& budget, int position, int num_rows) const {
  budget.rows -= num_rows;
  budget.min_rows = std::max(0, budget.min_rows - num_rows);
  budget.ns -= step_time_.PromptNs(position, num_rows);
}

// The first prompt in line gets half of the chunk for certain, the shortest of the others go next,
// so that a short prompt does not wait for a long one to end.
void Scheduler::SchedulePrefills(std::span<const RowRequest> requests) {
  order_.erase(
      std::remove_if(order_.begin(), order_.end(),
                     [&](int i) { return requests[i].phase != Phase::kPrefill || preempted_[i]; }),
      order_.end());
  if (order_.empty()) return;
  const RowRequest& head = requests[order_.front()];
  const PrefillBudget whole = prefill_left_;
  Spend(prefill_left_, head.position, RowsWithin(whole.Half(), head.position, head.num_rows));
  const PrefillBudget others = prefill_left_;
  std::stable_sort(order_.begin() + 1, order_.end(),
                   [&](int a, int b) { return requests[a].num_rows < requests[b].num_rows; });
  for (size_t i = 1; i < order_.size(); ++i) GrantPrefill(requests, order_[i]);
  prefill_left_ = {.rows = whole.rows - (others.rows - prefill_left_.rows),
                   .min_rows = whole.min_rows - (others.min_rows - prefill_left_.min_rows),
                   .ns = whole.ns - (others.ns - prefill_left_.ns)};
  GrantPrefill(requests, order_.front());
}

void Scheduler::GrantPrefill(std::span<const RowRequest> requests, int index) {
  const RowRequest& r = requests[index];
  const int num_rows = RowsWithin(prefill_left_, r.position, r.num_rows);
  if (num_rows <= 0) return;
  const int num_new_blocks = std::max(0, BlocksFor(r.position + num_rows) - r.num_blocks);
  if (!FindBlocks(requests, index, num_new_blocks)) return;
  blocks_left_ -= num_new_blocks;
  Spend(prefill_left_, r.position, num_rows);
  tokens_left_ -= num_rows;
  granted_rows_[index] = num_rows;
  plan_.grants.push_back({.index = index, .num_rows = num_rows, .num_new_blocks = num_new_blocks});
}

bool Scheduler::Admit(int num_blocks, int times_passed) {
  if (queue_blocked_ || num_free_seats() <= 0) return false;
  // One spare block while others run: room for their next token without preemption.
  const int spare = num_seated_ > 0 ? 1 : 0;
  if (num_blocks + spare > blocks_left_) {
    queue_blocked_ = times_passed >= kMaxTimesPassed;
    return false;
  }
  blocks_left_ -= num_blocks;
  ++num_seated_;
  return true;
}

int Scheduler::AdmittedRows(int position, int num_rows) {
  const int granted = RowsWithin(prefill_left_, position, num_rows);
  Spend(prefill_left_, position, granted);
  tokens_left_ -= granted;
  return granted;
}

}  // namespace lynx
