// SPDX-License-Identifier: Apache-2.0
// Decides which sequences run in a step, and with how many rows. Counts blocks and tokens; knows
// no memory, no model and no reason why a sequence is in its phase.
//
// A step is filled under a token budget in this order: verification rows, decode rows, draft rows,
// prefill chunks, and with what is left newly admitted sequences. While others decode, prefill gets
// only so many rows that the step should take no longer than step_target_ns, as far as the steps
// before it tell (StepTimeModel), but at least an eighth of that time and one row, so that it
// always goes on.
//
// Blocks: running sequences come before waiting ones. When a decode cannot get a block, the
// youngest preemptible sequence gives its blocks up (and is computed again later); if that is the
// asker itself, it goes, unless a loading sequence is about to become preemptible. It also waits
// where a younger one has rows in this step already. "No room" is a value: the sequence is left out
// of this step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lynx/types.h"
#include "sched/step_time_model.h"

namespace lynx {

// In the order of service.
enum class Phase : uint8_t { kVerify, kDecode, kDraft, kPrefill, kIdle };

// Lower comes first: earlier in every queue, later in line for preemption.
struct Precedence {
  int priority = 0;
  int64_t arrival = 0;  // order of arrival, unique
  auto operator<=>(const Precedence&) const = default;
};

// What one sequence that holds blocks asks of this step.
struct RowRequest {
  Precedence precedence;
  Phase phase = Phase::kIdle;  // kIdle: waits for something outside; only counts as a holder
  int num_rows = 0;            // that it could use
  int position = 0;            // of the first of them
  int num_blocks = 0;          // that it holds
  bool preemptible = false;
  bool takes_seat = true;  // counts against max_num_seqs; those without get half of a step at most
};

struct Grant {
  int index = 0;  // in the requests
  int num_rows = 0;
  int num_new_blocks = 0;
};

struct Plan {
  std::vector<Grant> grants;
  std::vector<int> preempted;  // indices; their blocks are already counted as free
  void Clear() {
    grants.clear();
    preempted.clear();
  }
};

class Scheduler {
 public:
  struct Options {
    int max_num_seqs = 64;
    int max_num_batched_tokens = 512;
    int64_t step_target_ns = 50'000'000;  // while others decode; 0: the whole budget always
  };
  explicit Scheduler(const Options& options) : options_(options) {}

  // Plans a step. num_free_blocks: what could be allocated now. The plan is valid until the next
  // call.
  const Plan& Schedule(std::span<const RowRequest> requests, int num_free_blocks);

  // After Schedule: whether a waiting sequence may take `num_blocks` blocks and a seat now. Takes
  // them when so. Called in order of precedence; a refusal does not stop later, smaller ones,
  // except behind one that was passed over too often (`times_passed`).
  bool Admit(int num_blocks, int times_passed);
  // After Admit: rows from `position` on, of the first prefill chunk, in this very step; possibly
  // 0.
  int AdmittedRows(int position, int num_rows);
  // What a step with these prompt rows should take; 0: not known.
  int64_t StepNs(int position, int num_rows) const {
    return static_cast<int64_t>(step_time_.base_ns() + step_time_.PromptNs(position, num_rows));
  }
  // After the step, with the prompt rows that it had.
  void Observe(const PromptWork& work, int64_t ns) { step_time_.Observe(work, ns); }

  int num_free_seats() const { return options_.max_num_seqs - num_seated_; }

 private:
  // What prompts may still take of this step. The first min_rows rows may exceed the time.
  struct PrefillBudget {
    int rows = 0;
    int min_rows = 0;
    double ns = 0;
    PrefillBudget Half() const { return {(rows + 1) / 2, (min_rows + 1) / 2, ns / 2}; }
  };

  void ScheduleOne(std::span<const RowRequest> requests, int index);
  void SchedulePrefills(std::span<const RowRequest> requests);
  void GrantPrefill(std::span<const RowRequest> requests, int index);
  PrefillBudget BudgetForPrefill() const;
  int RowsWithin(const PrefillBudget& budget, int position, int num_rows) const;
  void Spend(PrefillBudget& budget, int position, int num_rows) const;
  bool FindBlocks(std::span<const RowRequest> requests, int index, int num_blocks);
  bool AnyLoading(std::span<const RowRequest> requests) const;
  bool AnyYoungerRuns(std::span<const RowRequest> requests, int index) const;
  int Youngest(std::span<const RowRequest> requests) const;

  Options options_;
  StepTimeModel step_time_;
  Plan plan_;
  std::vector<int> order_;
  std::vector<int> granted_rows_;  // by index
  std::vector<bool> preempted_;    // by index
  int tokens_left_ = 0;
  int seatless_left_ = 0;  // of them, for those that take no seat
  PrefillBudget prefill_left_;
  int blocks_left_ = 0;
  int num_seated_ = 0;
  bool queue_blocked_ = false;
};

}  // namespace lynx
