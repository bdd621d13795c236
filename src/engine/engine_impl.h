// SPDX-License-Identifier: Apache-2.0
// The engine's state. Its methods are in files by subject: engine.cc (the loop), arrivals.cc,
// admission.cc, resident.cc (packed KV), compute.cc (the batch and what follows from its logits),
// decode_handoff.cc, handoff_anchor.cc, source_verify.cc (both sides of it), self_speculation.cc,
// prefill_jobs.cc, finish.cc.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/block_packer.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/sequence.h"
#include "engine/step_batch.h"
#include "engine/transfer_pins.h"
#include "kv/block_pool.h"
#include "kv/kv_cache.h"
#include "kv/prefix_cache.h"
#include "model/model.h"
#include "sampling/sampler.h"
#include "sched/fair_share.h"
#include "sched/scheduler.h"
#include "speculation/anchor_policy.h"
#include "speculation/draft_policy.h"
#include "speculation/learnt_mean.h"
#include "speculation/self_draft_policy.h"
#include "speculation/verify_policy.h"

namespace lynx {

// What an engine holds in bulk.
struct EngineMemory {
  std::unique_ptr<KvCache> kv_cache;
  std::unique_ptr<BlockPacker> packer;  // null: nothing is packed
  std::unique_ptr<float[]> logits;      // [max_num_batched_tokens, vocab_size]
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, Model& model, EngineMemory memory, Peers peers);
  ~EngineImpl() override;

  void Submit(Request request, OutputSink sink) override;
  void SubmitPrefill(RemotePrefillRequest job, PrefillSink sink) override;
  void Verify(VerifyRequest request) override;
  void Cancel(std::string request_id) override;
  void CancelPrefill(AttemptId attempt) override;
  EngineStats stats() const override;
  bool Step() override;
  void Run() override;
  void Stop(bool drain) override;

 private:
  enum class Stopping : uint8_t { kNo, kDrain, kNow };
  using Owned = std::unique_ptr<Sequence>;

  // engine.cc
  bool Idle() const;
  bool PrepareMemory();
  void AbortAll();
  void RefuseRest();
  bool Schedule();
  RowRequest Ask(const Sequence& s) const;
  void RemoveFinished();
  bool HasWork() const;
  void UpdateStats(bool progress);
  void CountRows(int num_rows);
  void CountAccepted(Sequence& s, int num_drafts);
  int64_t Now() const { return options_.clock_ns(); }

  // arrivals.cc
  bool ApplyCommands();
  void Apply(SubmitCommand& command);
  void Apply(SubmitPrefillCommand& command);
  void Apply(const VerifyRequest& request);
  void Apply(const CancelCommand& command);
  void Apply(const CancelPrefillCommand& command);
  void Apply(RemotePrefillEvent& event);
  void Apply(const StopCommand& command);
  absl::Status Check(const Request& request) const;
  absl::Status CheckTokens(std::span<const TokenId> tokens) const;
  absl::Status Check(const RemotePrefillRequest& request) const;
  absl::Status CheckFirstReport(const Sequence& s, const RemotePrefillEvent& report) const;
  absl::Status CheckRoom();
  void Enqueue(Owned sequence);
  bool Overdue(const Sequence& s) const;
  std::string OverdueMessage() const;

  // admission.cc
  struct Admission {
    PrefixMatch match;
    int num_blocks = 0;     // in all, the match included
    int num_from_pool = 0;  // of them, what is not owned by anybody now
    bool remote = false;
  };
  // kDeferred: not for want of room, but for a prefill daemon or an equal prefix.
  enum class Verdict : uint8_t { kAdmitted, kDeferred, kNoRoom };
  Admission PlanAdmission(const Sequence& s) const;
  int DraftWindow(const Sequence& s) const;
  void AdmitWaiting();
  void FailOverdue();
  void OrderWaiting(size_t begin);
  Verdict TryAdmit(Sequence& s);
  void UpdateRemoteDeadlines();
  bool WaitsForEqualPrefix(const Sequence& s, const Admission& admission) const;
  bool TakeBlocks(Sequence& s, const Admission& admission);
  void StartAdmitted(Sequence& s, bool remote);
  bool AllocateBlocks(Sequence& s, int count);
  void ReleaseBlocks(Sequence& s);
  void Requeue(Sequence& s);
  void RegisterBlocks(Sequence& s);

  // resident.cc
  int MovesWithinTarget() const;
  void AllowMoves();
  bool PackAhead();
  bool UnpacksFirst(const Admission& admission);
  void UpdatePackingStats();

  // compute.cc
  void AddRows(Sequence& s, int num_rows);
  void RunBatch();
  void ObserveStep(bool has_prompt, int64_t ns);
  void UseLogits(const BatchEntry& entry);
  void UsePrefillLogits(const BatchEntry& entry);
  void UseVerifyLogits(const BatchEntry& entry);
  void UseDraftLogits(const BatchEntry& entry);
  void AddDraft(Sequence& s, const Choice& choice);
  void TakePromptLogprobs(const BatchEntry& entry);
  std::span<const float> LogitsOf(const BatchEntry& entry, int i) const;
  Choice Choose(const BatchEntry& entry, int i, int num_output_tokens);
  TokenOutput ChooseToken(const BatchEntry& entry, int i);
  void AddVerified(Sequence& s, TokenOutput token, int64_t drafted_ns = 0);
  FinishReason EndedBy(const Sequence& s) const;
  void ObserveJudged(Sequence& s, int num_judged, int num_accepted);
  void RemoveDrafts(Sequence& s, int count);
  void DropDrafts(Sequence& s);
  void CountDrafts(Sequence& s);
  void UncountDrafts(Sequence& s);
  bool MayDraft(const Sequence& s) const;
  void PauseDrafting(Sequence& s);
  bool HasRoomForDraft(const Sequence& s) const;

  // decode_handoff.cc
  void StartAttempt(Sequence& s);
  bool PollReceiver();
  void Apply(const ReceiveEvent& event);
  void ContinueHandoff(Sequence& s);
  void ShareBlocks(Sequence& s);
  void CompleteHandoff(Sequence& s);
  void OnAttemptFailed(Sequence& s, const absl::Status& status);
  void AbandonAttempt(Sequence& s);
  void ObserveTransfer(const Sequence& s, const ReceiveEvent& event);
  void PromoteOnce(Sequence& s);
  bool Drafts(const Sequence& s) const;
  void TrimDrafts(Sequence& s);

  // handoff_anchor.cc
  void ChooseAnchor(Sequence& s);
  AnchorSituation Situation(const Sequence& s) const;
  void ObserveFirstToken(const Sequence& s, int num_computed);
  void ObserveRefined(const Sequence& s, int64_t at_ns);

  // source_verify.cc, decode role
  VerifyMode ChooseVerify(Sequence& s);
  void StartRound(Sequence& s);
  bool WorthARound(Sequence& s);
  int NumWorthJudging(const Sequence& s) const;
  void PromoteIfSlow(Sequence& s);
  bool SourceKeepsUp(const HandoffAttempt& a) const;
  void ForgoVerification(HandoffAttempt& attempt);
  void UseReport(Sequence& s, RemotePrefillEvent& report);
  absl::Status CheckReport(const Sequence& s, const RemotePrefillEvent& report) const;
  void AcceptFromSource(Sequence& s, std::vector<TokenOutput>& tokens);
  // prefill role
  bool OwnLastBlock(Sequence& s);
  bool KeepForVerification(Sequence& s, TokenId first_token);
  bool TransferEndsFirst(const Sequence& s) const;
  bool GrowBlocks(Sequence& s, int num_tokens);
  void StartJudging(Sequence& s, std::span<const TokenId> drafts);
  void AddReported(Sequence& s, TokenOutput token);
  void AnswerRound(Sequence& s);
  void EndRound(Sequence& s);
  State StateBetweenRounds(const Sequence& s) const;
  bool MayGoOn(const Sequence& s) const;
  bool GoesOn(const Sequence& s) const;
  bool AnyPrompt() const;
  int64_t StepNs() const;
  RemotePrefillEvent& Report(Sequence& s);

  // self_speculation.cc
  void StartSelfDrafts(Sequence& s);
  void UseSelfDraftLogits(const BatchEntry& entry);
  void EndSelfDrafts(Sequence& s);
  bool EndUnscheduledSelfDrafts();
  void DropLastDraft(Sequence& s);
  void ObserveSelfDrafts(Sequence& s, int num_judged, int num_accepted);
  int NumAttended(int num_tokens) const;
  DraftContextOptions SelfDraftContext() const;
  SelfDraftSituation DraftingSituation(const Sequence& s, int num_draft_tokens) const;
  SelfDraftSituation SelfDraftSituationOf(const Sequence& s) const;
  void ObserveWork(int64_t ns);

  // prefill_jobs.cc
  bool StartSending(Sequence& s);
  void AfterLayer(int layer);
  void FinishPrefillJob(Sequence& s, TokenOutput first_token);
  void LeaveToTransfer(Sequence& s);
  void FailPrefillJob(Sequence& s, const absl::Status& status);
  bool PollSender();

  // finish.cc
  EngineOutput& Output(Sequence& s);
  bool Publish();
  void FinishRequest(Sequence& s, FinishReason reason);
  void FailRequest(Sequence& s, const absl::Status& status);
  void Release(Sequence& s);

  const EngineOptions options_;
  Model& model_;
  const int vocab_size_;
  const int max_model_len_;
  const std::unique_ptr<KvCache> kv_cache_;
  const std::unique_ptr<BlockPacker> packer_;
  BlockPool pool_;
  PrefixCache prefix_cache_;
  TransferPins pins_;
  Scheduler scheduler_;
  FairShare fair_share_;
  DraftPolicy draft_policy_;
  VerifyPolicy verify_policy_;
  AnchorPolicy anchor_policy_;
  SelfDraftPolicy self_draft_policy_;
  LearntMean first_token_ns_;  // per token that the prefill side computed
  LearntMean refine_ns_;       // per token of a hand-off
  Sampler sampler_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  RemotePrefill* const remote_;
  const std::string receiver_address_;

  std::vector<Owned> waiting_;
  std::vector<Owned> seated_;  // hold blocks; finished ones until the end of the step
  std::unordered_map<std::string, Sequence*> by_id_;
  std::map<AttemptId, Sequence*> by_attempt_;
  // Prefill role: jobs whose first token is out and whose KV is still being sent.
  std::map<AttemptId, PrefillSink> sending_;
  std::vector<Sequence*> published_;  // with output_pending, in order
  int64_t next_number_ = 0;
  // How long steps took of late: those with prompt rows, and those without. 0: none yet.
  int64_t prompt_step_ns_ = 0, answer_step_ns_ = 0;
  bool prompts_wait_ = false;  // prompts are in work
  int num_decoding_ = 0;       // sequences that make tokens step by step

  // Of the current step, kept to avoid allocation.
  std::vector<Command> commands_;
  std::vector<RowRequest> row_requests_;
  StepBatch batch_;
  const std::unique_ptr<float[]> logits_;  // [max_num_batched_tokens, vocab_size]
  std::function<void(int)> after_layer_;

  Stopping stopping_ = Stopping::kNo;
  EngineStats counters_;  // engine thread
  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // the last snapshot

  // Last: their threads end before anything they use does.
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<KvReceiver> receiver_;
};

}  // namespace lynx
