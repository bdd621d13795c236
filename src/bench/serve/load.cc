// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/load.h"

#include <cstdio>
#include <memory>

#include "app/http_connection.h"
#include "boost/asio/as_tuple.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "core/clock.h"

namespace lynx {
namespace {

namespace asio = boost::asio;
constexpr int64_t kProgressNs = 10'000'000'000;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

class Load {
 public:
  Load(const ServeTarget& target, const LoadPlan& plan)
      : target_(target), plan_(plan), room_(io_, asio::steady_timer::time_point::max()) {}

  LoadResult Run() {
    answers_.resize(plan_.prompts.size());
    begin_ns_ = shown_ns_ = MonotonicNs();
    asio::co_spawn(io_, SendAll(), asio::detached);
    io_.run();
    answers_.resize(num_sent_);
    return {std::move(answers_), MonotonicNs() - begin_ns_};
  }

 private:
  asio::awaitable<void> SendAll() {
    asio::steady_timer due(io_);
    for (size_t i = 0; i < plan_.prompts.size(); ++i) {
      const int64_t due_ns = begin_ns_ + plan_.due_ns[i];
      if (due_ns > MonotonicNs()) {
        due.expires_at(asio::steady_timer::time_point(std::chrono::nanoseconds(due_ns)));
        co_await due.async_wait(kTuple);
      }
      while (plan_.max_concurrency > 0 && num_running_ >= plan_.max_concurrency) {
        co_await room_.async_wait(kTuple);  // cancelled by each answer that ends
      }
      const int64_t elapsed_ns = MonotonicNs() - begin_ns_;
      if (plan_.max_duration_ns > 0 && elapsed_ns > plan_.max_duration_ns) break;
      answers_[i].due_ns = due_ns;
      ++num_running_;
      ++num_sent_;
      asio::co_spawn(io_, Ask(i), asio::detached);
    }
  }

  asio::awaitable<void> Ask(size_t i) {
    AnswerRecord& record = answers_[i];
    record.prompt_tokens = plan_.prompts[i].num_tokens;
    HttpRequest request = target_.request;
    request.body = RequestBody(target_, plan_.prompts[i]);
    request.request_id = absl::StrCat("lynx-bench-", i);
    auto connection = TakeConnection();
    AnswerReader reader(&record);
    const HttpDataSink sink = [&](std::string_view bytes) { reader.Push(bytes, MonotonicNs()); };
    record.started_ns = MonotonicNs();
    const absl::StatusOr<HttpResponse> response = co_await connection->Send(request, sink);
    if (response.ok()) record.http_status = response->status;
    if (!response.ok()) {
      if (record.ok()) record.error = std::string(response.status().message());
    } else if (response->status != 200) {
      record.error = RefusalMessage(response->status, response->body);
    } else {
      reader.Finish();
    }
    idle_.push_back(std::move(connection));
    --num_running_;
    room_.cancel();
    ShowProgress();
  }

  std::unique_ptr<HttpConnection> TakeConnection() {
    if (idle_.empty()) return std::make_unique<HttpConnection>(io_.get_executor());
    auto connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  void ShowProgress() {
    ++num_done_;
    const int64_t now_ns = MonotonicNs();
    if (!plan_.shows_progress || now_ns < shown_ns_ + kProgressNs) return;
    shown_ns_ = now_ns;
    std::fprintf(stderr, "%s: %zu of %zu requests, %.0f s\n", target_.name.c_str(), num_done_,
                 plan_.prompts.size(), static_cast<double>(now_ns - begin_ns_) / 1e9);
  }

  const ServeTarget& target_;
  const LoadPlan& plan_;
  asio::io_context io_{1};
  asio::steady_timer room_;
  std::vector<std::unique_ptr<HttpConnection>> idle_;
  std::vector<AnswerRecord> answers_;
  int64_t begin_ns_ = 0, shown_ns_ = 0;
  size_t num_sent_ = 0, num_done_ = 0;
  int num_running_ = 0;
};

}  // namespace

std::string RequestBody(const ServeTarget& target, const ServePrompt& prompt) {
  nlohmann::json body = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (!target.model.empty()) body["model"] = target.model;
  if (target.is_chat) {
    const nlohmann::json message = {{"role", "user"}, {"content", prompt.text}};
    body["messages"] = nlohmann::json::array({message});
    body["max_completion_tokens"] = prompt.output_tokens;
  } else {
    body["prompt"] = prompt.text;
    body["max_tokens"] = prompt.output_tokens;
  }
  if (target.ignore_eos) body["ignore_eos"] = true;
  if (target.temperature) body["temperature"] = *target.temperature;
  if (target.extra_body.is_object()) body.update(target.extra_body);
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

LoadResult RunLoad(const ServeTarget& target, const LoadPlan& plan) {
  return Load(target, plan).Run();
}

}  // namespace lynx
