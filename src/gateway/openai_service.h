// SPDX-License-Identifier: Apache-2.0
// What the endpoints do, without a socket: admission, small answers, planning of generations.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "gateway/gateway.h"
#include "gateway/gateway_metrics.h"
#include "gateway/generation_plan.h"
#include "gateway/generation_session.h"
#include "gateway/http_message.h"
#include "gateway/routes.h"

namespace lynx {

enum class ServingState {
  kServing,
  kLeaving,   // still serves, but says that it is not ready
  kDraining,  // refuses new work
};

// Thread-safe.
class OpenAiService {
 public:
  OpenAiService(const GatewayOptions& options, Generator& generator, const Tokenizer& tokenizer,
                const ChatTemplate* chat_template, const ModelCard& card);

  // Decided by the header alone: path, method, key, content type, readiness.
  MaybeError Admit(const RouteMatch& match, const HttpRequest& request) const;

  // Every route that does not generate. Tokenizing ones are CPU-heavy.
  HttpResponse Answer(const RouteMatch& match, const HttpRequest& request) const;
  // A route that generates. CPU-heavy.
  MaybeError Plan(const RouteMatch& match, const HttpRequest& request, GenerationPlan* out) const;
  SessionContext session_context();

  // Counts a generating request while it lives.
  class Ticket {
   public:
    explicit Ticket(std::atomic<int>* count) : count_(count) {}
    Ticket(Ticket&& other) : count_(std::exchange(other.count_, nullptr)) {}
    ~Ticket() {
      if (count_ != nullptr) --*count_;
    }

   private:
    std::atomic<int>* count_;
  };
  // Empty: too many requests at one time.
  std::optional<Ticket> TryBegin();
  int num_generating() const { return num_generating_; }

  void set_state(ServingState state) { state_ = state; }
  ServingState state() const { return state_; }
  GatewayMetrics& metrics() const { return *metrics_; }

 private:
  MaybeError CheckKey(const HttpRequest& request) const;
  // Who asks: with several keys the bearer of one, else whom the body calls its user; 0: nobody.
  uint64_t ClientOf(const HttpRequest& request, const std::string& user) const;
  // With the longest sequence that every daemon heard of takes.
  RequestRules Rules() const;
  MaybeError CheckServing() const;   // can a new request be served
  MaybeError CheckProgress() const;  // does work that waits move
  HttpResponse Model(const std::string& id) const;
  HttpResponse Models() const;
  HttpResponse TokenizeAnswer(const HttpRequest& request) const;
  HttpResponse DetokenizeAnswer(const HttpRequest& request) const;
  std::string ModelCardJson(const std::string& id) const;

  const std::vector<std::string> api_keys_;
  const std::string tokenizer_config_;  // the answer of /tokenizer_info
  const int64_t created_s_;
  const RequestRules rules_;  // as configured
  Generator& generator_;
  const TextModel text_;
  std::unique_ptr<GatewayMetrics> metrics_;
  std::atomic<int> num_generating_ = 0;
  std::atomic<ServingState> state_ = ServingState::kServing;
};

}  // namespace lynx
