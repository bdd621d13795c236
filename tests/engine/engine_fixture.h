// SPDX-License-Identifier: Apache-2.0
// Engines stepped by hand: a colocated one, and a prefill + decode pair over a scripted link.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "fake_model.h"
#include "gtest/gtest.h"
#include "in_process_prefill.h"
#include "scripted_link.h"

namespace lynx {

// What a request has got so far.
struct Received {
  std::vector<TokenId> tokens;
  std::vector<TokenOutput> outputs;
  std::vector<TokenId> drafts;  // shown and neither revoked nor accepted yet
  int num_shown = 0, num_revoked = 0;
  EngineOutput last;  // with finish_reason or error
  std::vector<std::optional<TokenOutput>> prompt_logprobs;
  int num_prompt_logprob_reports = 0;
  int num_cached_tokens = -1;
  bool finished = false;
};

inline std::vector<TokenId> RandomPrompt(int length, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> prompt(length);
  for (TokenId& t : prompt) t = static_cast<TokenId>(20 + rng() % (FakeModel::kVocab - 20));
  return prompt;
}

inline Request MakeRequest(std::string id, std::vector<TokenId> prompt, int max_tokens,
                           float temperature = 0, uint64_t seed = 0) {
  Request request;
  request.id = std::move(id);
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.sampling.max_tokens = max_tokens;
  return request;
}

inline EngineOptions SmallOptions() {
  EngineOptions options;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 96;
  options.num_kv_blocks = 64;
  options.max_draft_tokens = 12;
  options.min_draft_survival = 0.01;
  options.max_local_prefill_length = 0;
  return options;
}

class Clients {
 public:
  void Submit(Engine& engine, Request request) {
    Received& r = received_[request.id];
    engine.Submit(std::move(request), [&r](EngineOutput output) {
      EXPECT_FALSE(r.finished) << "an output after the last one";
      for (TokenOutput& t : output.tokens) {
        if (!r.drafts.empty() && r.drafts.front() == t.id) r.drafts.erase(r.drafts.begin());
        r.tokens.push_back(t.id);
        r.outputs.push_back(t);
      }
      EXPECT_LE(output.num_revoked_drafts, static_cast<int>(r.drafts.size()));
      r.drafts.resize(r.drafts.size() - output.num_revoked_drafts);
      r.num_revoked += output.num_revoked_drafts;
      r.num_shown += static_cast<int>(output.drafts.size());
      r.drafts.insert(r.drafts.end(), output.drafts.begin(), output.drafts.end());
      if (!output.prompt_logprobs.empty()) {
        ++r.num_prompt_logprob_reports;
        r.prompt_logprobs = output.prompt_logprobs;
      }
      if (r.num_cached_tokens < 0 && !output.tokens.empty()) {
        r.num_cached_tokens = output.num_cached_tokens;
      }
      r.finished = output.finished();
      r.last = std::move(output);
    });
  }
  Received& operator[](const std::string& id) { return received_[id]; }
  bool AllFinished() const {
    for (const auto& [id, r] : received_) {
      if (!r.finished) return false;
    }
    return true;
  }

 private:
  std::map<std::string, Received> received_;
};

// One engine without a hand-off: the yardstick.
class Colocated {
 public:
  explicit Colocated(EngineOptions options = SmallOptions(), Model* model = nullptr) {
    options.role = Role::kColocated;
    auto created = Engine::Create(options, model != nullptr ? *model : fake, {});
    EXPECT_TRUE(created.ok()) << created.status();
    engine = std::move(*created);
  }
  void Submit(Request request) { clients.Submit(*engine, std::move(request)); }
  void RunAll(int max_steps = 5000) {
    for (int i = 0; i < max_steps && !clients.AllFinished(); ++i) engine->Step();
    EXPECT_TRUE(clients.AllFinished());
  }
  Received Run(const Request& request) {
    Submit(request);
    RunAll();
    return clients[request.id];
  }

  FakeModel fake;
  std::unique_ptr<Engine> engine;
  Clients clients;
};

// The text of a request, computed alone in a roomy engine.
inline std::vector<TokenId> Alone(const Request& request) {
  EngineOptions options = SmallOptions();
  options.enable_prefix_caching = false;
  return Colocated(options).Run(request).tokens;
}

// A prefill and a decode engine.
class Pair {
 public:
  explicit Pair(EngineOptions decode = SmallOptions(), EngineOptions prefill = SmallOptions()) {
    prefill.role = Role::kPrefill;
    Engine::Peers sending;
    sending.make_sender = [this](KvPoolView pool, std::function<void()>) {
      return link.MakeSender(pool);
    };
    auto p = Engine::Create(prefill, prefill_model, std::move(sending));
    EXPECT_TRUE(p.ok()) << p.status();
    this->prefill = std::move(*p);
    remote.set_engine(this->prefill.get());

    decode.role = Role::kDecode;
    decode.clock_ns = [this] { return ++clock_ns; };
    Engine::Peers receiving;
    receiving.make_receiver = [this](KvPoolView pool, std::function<void()>) {
      return link.MakeReceiver(pool);
    };
    receiving.remote = &remote;
    receiving.receiver_address = "decode";
    auto d = Engine::Create(decode, decode_model, std::move(receiving));
    EXPECT_TRUE(d.ok()) << d.status();
    this->decode = std::move(*d);
  }

  void Submit(Request request) { clients.Submit(*decode, std::move(request)); }
  bool Step() {
    bool progress = prefill->Step();
    progress |= decode->Step();
    link.Pump();
    return progress;
  }
  void StepTimes(int n) {
    for (int i = 0; i < n; ++i) Step();
  }
  void RunAll(int max_steps = 20000) {
    for (int i = 0; i < max_steps && !clients.AllFinished(); ++i) Step();
    EXPECT_TRUE(clients.AllFinished());
    StepTimes(5);
  }
  Received Run(const Request& request) {
    Submit(request);
    RunAll();
    return clients[request.id];
  }
  // Nothing is owned any more on either side.
  void ExpectNoLeak() {
    StepTimes(5);
    for (Engine* e : {prefill.get(), decode.get()}) {
      const EngineStats s = e->stats();
      EXPECT_EQ(s.blocks_request, 0);
      EXPECT_EQ(s.blocks_transfer, 0);
      EXPECT_EQ(s.blocks_free + s.blocks_cached + s.blocks_packed, s.blocks_total);
      EXPECT_EQ(s.num_running, 0);
      EXPECT_EQ(s.num_waiting, 0);
    }
    EXPECT_EQ(link.num_transfers(), 0u);
  }

  ScriptedLink link;
  FakeModel prefill_model, decode_model;
  int64_t clock_ns = 1;
  InProcessPrefill remote{nullptr};
  Clients clients;
  std::unique_ptr<Engine> prefill, decode;
};

}  // namespace lynx
