// SPDX-License-Identifier: Apache-2.0
// Services and clients against each other over loopback, with a scripted engine behind them.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/cluster_client.h"
#include "rpc/convert.h"
#include "rpc/daemon_info.h"
#include "rpc/daemon_server.h"
#include "rpc/daemon_watch.h"
#include "rpc/prefill_client.h"

namespace lynx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr int kVocab = 100;
constexpr auto kPatience = std::chrono::seconds(20);

// Records what it is asked and answers when the test says so.
class ScriptedEngine final : public Engine {
 public:
  void Submit(Request request, OutputSink sink) override {
    std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    sinks_.push_back(std::move(sink));
    ended_.push_back(false);
    changed_.notify_all();
  }
  void SubmitPrefill(RemotePrefillRequest job, PrefillSink sink) override {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    prefill_sinks_.push_back(std::move(sink));
    changed_.notify_all();
  }
  void Verify(VerifyRequest request) override {
    std::lock_guard lock(mutex_);
    rounds_.push_back(std::move(request));
    changed_.notify_all();
  }
  // As of a real engine, no output follows the last one.
  void Cancel(std::string id) override {
    OutputSink sink;
    {
      std::lock_guard lock(mutex_);
      cancelled_.push_back(id);
      changed_.notify_all();
      const auto request = std::find_if(requests_.begin(), requests_.end(),
                                        [&](const Request& r) { return r.id == id; });
      const size_t index = request - requests_.begin();
      if (!answers_cancel_ || request == requests_.end() || ended_[index]) return;
      ended_[index] = true;
      sink = sinks_[index];
    }
    EngineOutput output;
    output.finish_reason = FinishReason::kAbort;
    sink(output);
  }
  void CancelPrefill(AttemptId attempt) override {
    std::lock_guard lock(mutex_);
    cancelled_prefills_.push_back(attempt);
    changed_.notify_all();
  }
  EngineStats stats() const override {
    EngineStats stats;
    stats.blocks_free = 42;
    stats.num_deferred = 2;
    stats.received_bytes[2] = 3;
    stats.accepted_at[15] = 4;
    *std::rbegin(stats.step_rows_le) = 5;
    return stats;
  }
  bool Step() override { return false; }
  void Run() override {}
  void Stop(bool) override {}

  template <typename Predicate>
  bool WaitUntil(Predicate&& predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, predicate);
  }
  Request request(size_t i) {
    WaitUntil([&] { return requests_.size() > i; });
    std::lock_guard lock(mutex_);
    return requests_.at(i);
  }
  void Emit(size_t i, EngineOutput output) {
    WaitUntil([&] { return sinks_.size() > i; });
    OutputSink sink;
    {
      std::lock_guard lock(mutex_);
      if (output.finished()) ended_.at(i) = true;
      sink = sinks_.at(i);
    }
    sink(std::move(output));
  }
  RemotePrefillRequest job(size_t i) {
    WaitUntil([&] { return jobs_.size() > i; });
    std::lock_guard lock(mutex_);
    return jobs_.at(i);
  }
  void EmitPrefill(size_t i, RemotePrefillEvent event) { prefill_sinks_.at(i)(std::move(event)); }
  size_t num_requests() {
    std::lock_guard lock(mutex_);
    return requests_.size();
  }

  bool answers_cancel_ = true;
  std::vector<std::string> cancelled_;
  std::vector<AttemptId> cancelled_prefills_;
  std::vector<VerifyRequest> rounds_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Request> requests_;
  std::deque<OutputSink> sinks_;
  std::vector<bool> ended_;  // their last output is out
  std::vector<RemotePrefillRequest> jobs_;
  std::deque<PrefillSink> prefill_sinks_;
};

v1::DaemonInfo ReadyInfo(const std::string& name) {
  v1::DaemonInfo info;
  info.set_name(name);
  info.set_ready(true);
  info.set_epoch(7);
  info.set_protocol_version(kProtocolVersion);
  info.set_backend("cpu");
  info.set_codec("planes");
  info.set_kv_resident("bf16");
  info.set_num_layers(2);
  return info;
}

struct Daemon {
  explicit Daemon(v1::DaemonInfo info) {
    for (int port = 21000 + getpid() % 20000; server == nullptr; ++port) {
      address = absl::StrCat("127.0.0.1:", port);
      auto created = DaemonServer::Create(address, 30, [info] { return info; });
      if (created.ok()) server = *std::move(created);
    }
    server->Serve(&engine, kVocab);
  }
  ScriptedEngine engine;
  std::string address;
  std::unique_ptr<DaemonServer> server;
};

// Collects what a sink is given.
template <typename T>
class Mailbox {
 public:
  std::function<void(T)> sink() {
    return [this](T value) {
      std::lock_guard lock(mutex_);
      values_.push_back(std::move(value));
      changed_.notify_all();
    };
  }
  T Next() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return !values_.empty(); }));
    if (values_.empty()) return T{};
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }
  bool empty() {
    std::lock_guard lock(mutex_);
    return values_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

template <typename Predicate>
bool Eventually(Predicate&& predicate) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!predicate()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

EngineOutput Tokens(std::vector<TokenId> ids, FinishReason reason = FinishReason::kNone) {
  EngineOutput output;
  for (TokenId id : ids) output.tokens.push_back({.id = id});
  output.finish_reason = reason;
  return output;
}

std::vector<TokenId> IdsOf(const EngineOutput& output) {
  std::vector<TokenId> ids;
  for (const auto& token : output.tokens) ids.push_back(token.id);
  return ids;
}

Request MakeRequest(const std::string& id) {
  Request request;
  request.id = id;
  request.prompt_ids = {1, 2, 3};
  return request;
}

TEST(Convert, RequestSurvivesTheWire) {
  Request request = MakeRequest("r");
  request.emitted_ids = {9};
  request.sampling.temperature = 0.25f;
  request.sampling.seed = ~uint64_t{0};
  request.sampling.logit_bias = {{5, -100.0f}};
  request.sampling.num_logprobs = -1;
  request.sampling.num_prompt_logprobs = 3;
  request.cache_salt = "salt";
  const auto back = FromProto(ToProto(request), kVocab);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToProto(*back).SerializeAsString(), ToProto(request).SerializeAsString());
  EXPECT_EQ(back->sampling.num_logprobs, -1);
  EXPECT_EQ(back->sampling.seed, ~uint64_t{0});
}

TEST(Convert, VerifyModesSurviveTheWire) {
  Request request = MakeRequest("r");
  EXPECT_FALSE(FromProto(ToProto(request), kVocab)->verify.has_value());
  request.verify = VerifyMode::kHold;
  EXPECT_EQ(FromProto(ToProto(request), kVocab)->verify, VerifyMode::kHold);
  v1::GenerateRequest message = ToProto(request);
  message.set_verify(4);
  EXPECT_THAT(std::string(FromProto(message, kVocab).status().message()),
              HasSubstr("verify: 4 is not in 0..3"));
}

TEST(Convert, RefusesIdsOutsideTheVocabulary) {
  Request request = MakeRequest("r");
  request.prompt_ids.push_back(kVocab);
  EXPECT_THAT(std::string(FromProto(ToProto(request), kVocab).status().message()),
              HasSubstr("prompt_ids: token id 100 is not in 0..99"));
  request = MakeRequest("r");
  request.sampling.stop_token_ids = {-1};
  EXPECT_FALSE(FromProto(ToProto(request), kVocab).ok());
}

TEST(Convert, RefusesWhatIsNotFinite) {
  const v1::GenerateRequest good = ToProto(MakeRequest("r"));
  const auto refusal_of = [&](auto&& change) {
    v1::GenerateRequest message = good;
    change(message.mutable_sampling());
    return std::string(FromProto(message, kVocab).status().message());
  };
  const float nan = std::nanf(""), inf = INFINITY;
  using Sampling = v1::Sampling*;
  EXPECT_EQ(refusal_of([](Sampling) {}), "");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->set_temperature(nan); }),
            "temperature: nan is not finite");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->set_top_p(nan); }), "top_p: nan is not finite");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->set_min_p(-inf); }), "min_p: -inf is not finite");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->set_presence_penalty(inf); }),
            "presence_penalty: inf is not finite");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->set_frequency_penalty(nan); }),
            "frequency_penalty: nan is not finite");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->set_repetition_penalty(inf); }),
            "repetition_penalty: inf is not finite");
  EXPECT_EQ(refusal_of([&](Sampling s) { s->add_logit_bias()->set_bias(nan); }),
            "logit_bias: nan is not finite");
}

TEST(Convert, TimelineBecomesRelativeToArrival) {
  EngineOutput output = Tokens({4}, FinishReason::kStop);
  output.timeline.Mark(Event::kArrived, 1000);
  output.timeline.Mark(Event::kFirstToken, 1500);
  output.timeline.token_ns = {1500};
  output.timeline.provisional_ns = {1400};
  output.timeline.verify = VerifyMode::kSource;
  output.timeline.num_source_tokens = 3;
  output.timeline.num_self_drafted = 9;
  output.timeline.num_self_accepted = 8;
  output.timeline.estimated_residual_ns = 77;
  output.timeline.anchor = "k3v2";
  output.timeline.estimated_anchor_ns = 88;
  const EngineOutput back = FromProto(ToProto(output));
  EXPECT_EQ(back.timeline.token_ns[0] - back.timeline.provisional_ns[0], 100);
  EXPECT_EQ(back.timeline.verify, VerifyMode::kSource);
  EXPECT_EQ(back.timeline.num_source_tokens, 3);
  EXPECT_EQ(back.timeline.num_self_drafted, 9);
  EXPECT_EQ(back.timeline.num_self_accepted, 8);
  EXPECT_EQ(back.timeline.estimated_residual_ns, 77);
  EXPECT_EQ(back.timeline.anchor, "k3v2");
  EXPECT_EQ(back.timeline.estimated_anchor_ns, 88);
  EXPECT_EQ(back.timeline.at(Event::kFirstToken) - back.timeline.at(Event::kArrived), 500);
  EXPECT_EQ(back.timeline.at(Event::kFirstDraft), 0);
  EXPECT_EQ(back.finish_reason, FinishReason::kStop);
}

TEST(Generate, StreamsOutputsInOrder) {
  Daemon decode(ReadyInfo("decode0"));
  const auto client = ClusterClient::Create({.decode_addresses = {decode.address}});
  ASSERT_TRUE(Eventually([&] { return client->ready(); }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  decode.engine.Emit(0, Tokens({5}));
  decode.engine.Emit(0, Tokens({6, 7}));
  decode.engine.Emit(0, Tokens({8}, FinishReason::kLength));
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(5));
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(6, 7));
  const EngineOutput last = box.Next();
  EXPECT_THAT(IdsOf(last), ElementsAre(8));
  EXPECT_EQ(last.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(Eventually([&] { return client->daemons()[0].stats.blocks_free == 42; }));
  const EngineStats stats = client->daemons()[0].stats;
  EXPECT_EQ(stats.num_deferred, 2);
  EXPECT_EQ(stats.received_bytes[2], 3);
  EXPECT_EQ(stats.accepted_at[15], 4);
  EXPECT_EQ(*std::rbegin(stats.step_rows_le), 5);
}

TEST(Generate, DestroyingTheHandleCancels) {
  Daemon decode(ReadyInfo("decode0"));
  const auto client = ClusterClient::Create({.decode_addresses = {decode.address}});
  ASSERT_TRUE(Eventually([&] { return client->ready(); }));
  Mailbox<EngineOutput> box;
  auto generation = client->Generate(MakeRequest("a"), box.sink());
  decode.engine.request(0);
  generation.reset();
  EXPECT_TRUE(decode.engine.WaitUntil([&] { return !decode.engine.cancelled_.empty(); }));
  EXPECT_THAT(decode.engine.cancelled_, ElementsAre(decode.engine.request(0).id));
  EXPECT_TRUE(box.empty());
}

TEST(Generate, StoppingItBringsTheLastOutput) {
  Daemon decode(ReadyInfo("decode0"));
  const auto client = ClusterClient::Create({.decode_addresses = {decode.address}});
  ASSERT_TRUE(Eventually([&] { return client->ready(); }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  decode.engine.Emit(0, Tokens({5}));
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(5));
  generation->Stop();
  EXPECT_EQ(box.Next().finish_reason, FinishReason::kAbort);
  EXPECT_THAT(decode.engine.cancelled_, ElementsAre(decode.engine.request(0).id));
}

TEST(Generate, AStoppedRequestGoesOnNowhere) {
  auto first = std::make_unique<Daemon>(ReadyInfo("decode0"));
  Daemon second(ReadyInfo("decode1"));
  const auto client = ClusterClient::Create({.decode_addresses = {first->address, second.address}});
  ASSERT_TRUE(Eventually([&] {
    const auto daemons = client->daemons();
    return daemons[0].healthy && daemons[1].healthy;
  }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  first->engine.answers_cancel_ = false;
  first->engine.Emit(0, Tokens({5}));
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(5));
  generation->Stop();
  EngineOutput draining = Tokens({}, FinishReason::kError);
  draining.error = absl::UnavailableError("the engine is stopping");
  first->engine.Emit(0, draining);
  EXPECT_FALSE(box.Next().finished());  // what came with it
  EXPECT_TRUE(absl::IsUnavailable(box.Next().error));
  EXPECT_EQ(second.engine.num_requests(), 0u);
}

TEST(Generate, GoesOnElsewhereWithWhatWasEmitted) {
  auto first = std::make_unique<Daemon>(ReadyInfo("decode0"));
  Daemon second(ReadyInfo("decode1"));
  const auto client = ClusterClient::Create({.decode_addresses = {first->address, second.address}});
  ASSERT_TRUE(Eventually([&] {
    const auto daemons = client->daemons();
    return daemons[0].healthy && daemons[1].healthy;
  }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  const bool on_first = first->engine.WaitUntil([&] { return true; }) && Eventually([&] {
                          return first->engine.num_requests() + second.engine.num_requests() == 1;
                        }) &&
                        first->engine.num_requests() == 1;
  ASSERT_TRUE(on_first);
  first->engine.Emit(0, Tokens({5, 6}));
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(5, 6));
  first->server.reset();  // cancels the call after its grace
  const Request again = second.engine.request(0);
  EXPECT_THAT(again.emitted_ids, ElementsAre(5, 6));
  EXPECT_EQ(again.prompt_ids, MakeRequest("a").prompt_ids);
  second.engine.Emit(0, Tokens({7}, FinishReason::kStop));
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(7));
}

TEST(Generate, GoesOnElsewhereWhenADaemonGivesUp) {
  Daemon first(ReadyInfo("decode0")), second(ReadyInfo("decode1"));
  const auto client = ClusterClient::Create({.decode_addresses = {first.address, second.address}});
  ASSERT_TRUE(Eventually([&] {
    const auto daemons = client->daemons();
    return daemons[0].healthy && daemons[1].healthy;
  }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  EngineOutput draining = Tokens({5}, FinishReason::kError);
  draining.error = absl::UnavailableError("the engine is stopping");
  first.engine.Emit(0, draining);
  const EngineOutput kept = box.Next();
  EXPECT_THAT(IdsOf(kept), ElementsAre(5));
  EXPECT_FALSE(kept.finished());
  EXPECT_THAT(second.engine.request(0).emitted_ids, ElementsAre(5));
  second.engine.Emit(0, draining);  // nobody is left
  EXPECT_THAT(IdsOf(box.Next()), ElementsAre(5));
  const EngineOutput last = box.Next();
  EXPECT_EQ(last.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(last.error.message()), HasSubstr("the engine is stopping"));
}

// Of drafts 1, 2, 3 the first has become final; nobody else would ever take the others back.
TEST(Generate, DraftsOfADaemonThatGivesUpAreRevoked) {
  Daemon first(ReadyInfo("decode0")), second(ReadyInfo("decode1"));
  const auto client = ClusterClient::Create({.decode_addresses = {first.address, second.address}});
  ASSERT_TRUE(Eventually([&] {
    const auto daemons = client->daemons();
    return daemons[0].healthy && daemons[1].healthy;
  }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  EngineOutput drafts = Tokens({});
  drafts.drafts = {9, 8};
  first.engine.Emit(0, drafts);
  EngineOutput others = Tokens({4});
  others.num_revoked_drafts = 2;
  others.drafts = {1, 2, 3};
  first.engine.Emit(0, others);
  first.engine.Emit(0, Tokens({1}));
  for (int i = 0; i < 3; ++i) box.Next();
  EngineOutput draining = Tokens({}, FinishReason::kError);
  draining.error = absl::UnavailableError("the engine is stopping");
  first.engine.Emit(0, draining);
  EXPECT_FALSE(box.Next().finished());
  EXPECT_EQ(box.Next().num_revoked_drafts, 2);
  EXPECT_THAT(second.engine.request(0).emitted_ids, ElementsAre(4, 1));
  second.engine.Emit(0, Tokens({7}, FinishReason::kStop));
  EXPECT_EQ(box.Next().num_revoked_drafts, 0);
}

// Its links may be the trouble; when nobody else's are better, that is what the client hears.
TEST(Generate, GoesOnElsewhereWhenNoKvArrives) {
  Daemon first(ReadyInfo("decode0")), second(ReadyInfo("decode1"));
  const auto client = ClusterClient::Create({.decode_addresses = {first.address, second.address}});
  ASSERT_TRUE(Eventually([&] {
    const auto daemons = client->daemons();
    return daemons[0].healthy && daemons[1].healthy;
  }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  EngineOutput lost = Tokens({}, FinishReason::kError);
  lost.error = absl::DataLossError("hand-off 3 of 3 failed: link lost");
  first.engine.Emit(0, lost);
  second.engine.request(0);
  second.engine.Emit(0, lost);
  EXPECT_FALSE(box.Next().finished());
  EXPECT_FALSE(box.Next().finished());
  EXPECT_TRUE(absl::IsDataLoss(box.Next().error));
}

TEST(Generate, ALostDaemonThatNobodyReplacesIsNamedWithoutItsAddress) {
  auto decode = std::make_unique<Daemon>(ReadyInfo("decode0"));
  const std::string address = decode->address;
  const auto client = ClusterClient::Create({.decode_addresses = {address}});
  ASSERT_TRUE(Eventually([&] { return client->ready(); }));
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  decode->engine.request(0);
  decode->server.reset();
  const absl::Status error = box.Next().error;
  EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(std::string(error.message()).find(address), std::string::npos);
}

TEST(Generate, WithoutADaemonIsUnavailable) {
  const auto client = ClusterClient::Create({.decode_addresses = {"127.0.0.1:1"}});
  EXPECT_FALSE(client->ready());
  Mailbox<EngineOutput> box;
  const auto generation = client->Generate(MakeRequest("a"), box.sink());
  EXPECT_EQ(box.Next().error.code(), absl::StatusCode::kUnavailable);
}

RemotePrefillRequest MakePrefill(uint64_t id) {
  RemotePrefillRequest request;
  request.attempt = {id, id};
  request.request_id = "r";
  request.prompt_ids = {1, 2, 3};
  return request;
}

TEST(Prefill, FirstTokenComesUpAndLandedClosesTheCall) {
  Daemon prefill(ReadyInfo("prefill0"));
  const auto client = PrefillClient::Create({prefill.address}, ReadyInfo("decode0"));
  ASSERT_TRUE(Eventually([&] { return client->available(); })) << client->unavailable_reason();
  Mailbox<RemotePrefillEvent> box;
  client->Start(MakePrefill(1), box.sink());
  EXPECT_EQ(prefill.engine.job(0).attempt, (AttemptId{1, 1}));
  RemotePrefillEvent event;
  event.first_token = TokenOutput{.id = 9, .logprob = -0.5f};
  event.num_cached_tokens = 64;
  prefill.engine.EmitPrefill(0, event);
  const RemotePrefillEvent got = box.Next();
  ASSERT_TRUE(got.first_token.has_value());
  EXPECT_EQ(got.first_token->id, 9);
  EXPECT_EQ(got.num_cached_tokens, 64);
  client->Landed({1, 1});
  client->Start(MakePrefill(2), box.sink());
  prefill.engine.job(1);
  EXPECT_TRUE(prefill.engine.cancelled_prefills_.empty());
  EXPECT_TRUE(box.empty());
}

TEST(Prefill, RoundsGoDownAndFinalTokensComeUp) {
  Daemon prefill(ReadyInfo("prefill0"));
  const auto client = PrefillClient::Create({prefill.address}, ReadyInfo("decode0"));
  ASSERT_TRUE(Eventually([&] { return client->available(); }));
  Mailbox<RemotePrefillEvent> box;
  RemotePrefillRequest request = MakePrefill(5);
  request.verify = VerifyMode::kSource;
  request.anchor = {3, 1, 0, 255};
  client->Start(request, box.sink());
  EXPECT_EQ(prefill.engine.job(0).anchor, request.anchor);
  EXPECT_EQ(prefill.engine.job(0).verify, VerifyMode::kSource);
  client->Verify({.attempt = {5, 5}, .round = 3, .position = 4, .drafts = {7, 8}});
  ASSERT_TRUE(prefill.engine.WaitUntil([&] { return !prefill.engine.rounds_.empty(); }));
  const VerifyRequest& round = prefill.engine.rounds_[0];
  EXPECT_EQ(round.attempt, (AttemptId{5, 5}));
  EXPECT_EQ(round.round, 3u);
  EXPECT_EQ(round.position, 4);
  EXPECT_THAT(round.drafts, ElementsAre(7, 8));
  RemotePrefillEvent event;
  event.verified = {{.id = 7, .logprob = -0.5f, .rank = 1, .top = {{7, -0.5f, 1}}}, {.id = 9}};
  event.position = 4;
  event.round_over = true;
  event.round = 3;
  event.goes_on = true;
  event.step_ns = 123;
  prefill.engine.EmitPrefill(0, event);
  RemotePrefillEvent got = box.Next();
  EXPECT_FALSE(got.first_token.has_value());
  ASSERT_EQ(got.verified.size(), 2u);
  EXPECT_EQ(got.verified[0].top.size(), 1u);
  EXPECT_EQ(got.verified[1].id, 9);
  EXPECT_EQ(got.position, 4);
  EXPECT_TRUE(got.round_over && got.goes_on && !got.cannot_verify);
  EXPECT_EQ(got.round, 3u);
  EXPECT_EQ(got.step_ns, 123);
  RemotePrefillEvent refusal;
  refusal.round_over = refusal.cannot_verify = true;
  prefill.engine.EmitPrefill(0, refusal);
  got = box.Next();
  EXPECT_TRUE(got.round_over && got.cannot_verify && got.verified.empty());
  EXPECT_TRUE(prefill.engine.cancelled_prefills_.empty());
}

TEST(Prefill, ARoundOutsideTheVocabularyEndsTheCall) {
  Daemon prefill(ReadyInfo("prefill0"));
  const auto client = PrefillClient::Create({prefill.address}, ReadyInfo("decode0"));
  ASSERT_TRUE(Eventually([&] { return client->available(); }));
  Mailbox<RemotePrefillEvent> box;
  client->Start(MakePrefill(6), box.sink());
  client->Verify({.attempt = {6, 6}, .position = 4, .drafts = {kVocab}});
  EXPECT_TRUE(absl::IsInvalidArgument(box.Next().error));
  EXPECT_TRUE(
      prefill.engine.WaitUntil([&] { return !prefill.engine.cancelled_prefills_.empty(); }));
}

TEST(Prefill, LandedAfterTheDaemonHasGoneIsHarmless) {
  auto prefill = std::make_unique<Daemon>(ReadyInfo("prefill0"));
  const auto client = PrefillClient::Create({prefill->address}, ReadyInfo("decode0"));
  ASSERT_TRUE(Eventually([&] { return client->available(); }));
  Mailbox<RemotePrefillEvent> box;
  for (uint64_t id = 1; id <= 32; ++id) client->Start(MakePrefill(id), box.sink());
  prefill->engine.job(31);
  std::thread landing([&] {
    for (uint64_t id = 1; id <= 32; ++id) client->Landed({id, id});
  });
  prefill->server.reset();
  landing.join();
}

// A daemon on which attempts fail at once has the fewest open ones.
TEST(Prefill, AnAttemptGoesWhereNoneOfTheRequestHasFailed) {
  Daemon first(ReadyInfo("prefill0")), second(ReadyInfo("prefill1"));
  const auto client = PrefillClient::Create({first.address, second.address}, ReadyInfo("decode0"));
  Mailbox<RemotePrefillEvent> box;
  uint64_t id = 0;
  const auto start = [&](std::vector<int> failed_at) {
    RemotePrefillRequest request = MakePrefill(++id);
    request.failed_at = std::move(failed_at);
    return client->Start(request, box.sink());
  };
  ASSERT_TRUE(Eventually([&] { return start({1}) == 0 && start({0}) == 1; })) << "both are usable";
  for (int i = 0; i < 50; ++i) ASSERT_EQ(start({0, 0}), 1);
  EXPECT_EQ(start({}), 0);
  EXPECT_EQ(start({1, 0}), 0) << "there is no other";
}

TEST(Prefill, CancelReachesThePrefillDaemon) {
  Daemon prefill(ReadyInfo("prefill0"));
  const auto client = PrefillClient::Create({prefill.address}, ReadyInfo("decode0"));
  ASSERT_TRUE(Eventually([&] { return client->available(); }));
  Mailbox<RemotePrefillEvent> box;
  client->Start(MakePrefill(3), box.sink());
  prefill.engine.job(0);
  client->Cancel({3, 3});
  EXPECT_TRUE(
      prefill.engine.WaitUntil([&] { return !prefill.engine.cancelled_prefills_.empty(); }));
  EXPECT_TRUE(box.empty());
}

TEST(Prefill, LostDaemonIsAnError) {
  auto prefill = std::make_unique<Daemon>(ReadyInfo("prefill0"));
  const auto client = PrefillClient::Create({prefill->address}, ReadyInfo("decode0"));
  ASSERT_TRUE(Eventually([&] { return client->available(); }));
  Mailbox<RemotePrefillEvent> box;
  client->Start(MakePrefill(4), box.sink());
  prefill->engine.job(0);
  prefill->server.reset();
  EXPECT_FALSE(box.Next().error.ok());
  EXPECT_TRUE(Eventually([&] { return !client->available(); }));
}

// What a question keeps of the channel is given back before the watch takes it for answered: a
// channel must not end on one of gRPC's own threads, which would wait for itself.
TEST(Watch, EndsWhileAnswersArrive) {
  const Daemon daemon(ReadyInfo("decode0"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto watch = DaemonWatch::Create({daemon.address}, /*with_stats=*/true, nullptr);
        EXPECT_TRUE(i % 2 == 0 || Eventually([&] { return watch->Get(0).reachable; }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Server, AnAddressInUseIsAnError) {
  const Daemon daemon(ReadyInfo("decode0"));
  const auto info = [] { return ReadyInfo("decode1"); };
  const auto second = DaemonServer::Create(daemon.address, 30, info);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("cannot listen there"));
  const std::string everywhere = absl::StrCat("0.0.0.0", daemon.address.substr(9));
  EXPECT_FALSE(DaemonServer::Create(everywhere, 30, info).ok());
  EXPECT_FALSE(DaemonServer::Create("no-port", 30, info).ok());
  EXPECT_FALSE(DaemonServer::Create("127.0.0.1:http?", 30, info).ok());
}

TEST(Handshake, NamesTheFieldAndBothValues) {
  const v1::DaemonInfo here = ReadyInfo("decode0");
  v1::DaemonInfo there = ReadyInfo("prefill0");
  EXPECT_EQ(Disagreement(here, there), "");
  there.set_num_layers(3);
  EXPECT_EQ(Disagreement(here, there), "num_layers: 2 in decode0, 3 in prefill0");
  there = ReadyInfo("prefill0");
  there.set_backend("cuda");
  EXPECT_EQ(Disagreement(here, there), "backend: cpu in decode0, cuda in prefill0");
  there = ReadyInfo("prefill0");
  there.set_decode_tensor_parallel_size(2);
  EXPECT_EQ(Disagreement(here, there), "decode_tensor_parallel_size: 0 in decode0, 2 in prefill0");
  there = ReadyInfo("prefill0");
  there.set_kv_resident("exact");
  EXPECT_EQ(Disagreement(here, there), "") << "without loss it does not matter";
  there.set_kv_resident("8bit");
  EXPECT_EQ(Disagreement(here, there), "kv_resident: bf16 in decode0, 8bit in prefill0");
  there = ReadyInfo("prefill0");
  there.set_model_hash(1);
  EXPECT_THAT(Disagreement(here, there), HasSubstr("model_hash: 0x0000000000000000 in decode0"));
}

TEST(Handshake, ADaemonThatDisagreesIsNotUsed) {
  v1::DaemonInfo other = ReadyInfo("prefill0");
  other.set_codec("int8");
  Daemon prefill(other);
  const auto client = PrefillClient::Create({prefill.address}, ReadyInfo("decode0"));
  EXPECT_TRUE(Eventually([&] {
    return client->unavailable_reason().find("codec: planes in decode0, int8 in prefill0") !=
           std::string::npos;
  }));
  EXPECT_FALSE(client->available());
}

}  // namespace
}  // namespace lynx
