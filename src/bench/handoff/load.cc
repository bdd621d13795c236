// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/load.h"

#include <chrono>
#include <utility>

#include "app/http_client.h"
#include "bench/handoff/sample.h"
#include "nlohmann/json.hpp"

namespace lynx {
namespace {

constexpr size_t kPromptTokens = 1024;
constexpr auto kPause = std::chrono::milliseconds(50);  // after a refusal

}  // namespace

HandoffLoad::HandoffLoad(int port, std::vector<TokenId> tokens)
    : port_(port), tokens_(std::move(tokens)) {
  for (int i = 0; i < kNumClients; ++i) clients_.emplace_back([this, i] { Loop(i); });
}

HandoffLoad::~HandoffLoad() {
  stop_ = true;
  for (std::thread& client : clients_) client.join();
}

void HandoffLoad::Loop(int client) {
  HttpRequest request;
  request.host = "127.0.0.1";
  request.port = port_;
  request.method = "POST";
  request.target = "/v1/completions";
  for (size_t n = client; !stop_; n += kNumClients) {
    const size_t begin = n % (tokens_.size() - std::min(tokens_.size() - 1, kPromptTokens));
    const size_t end = std::min(tokens_.size(), begin + kPromptTokens);
    const nlohmann::json body = {
        {"prompt", std::vector<TokenId>(tokens_.begin() + begin, tokens_.begin() + end)},
        {"max_tokens", 1}};
    request.body = body.dump();
    const auto response = SendHttp(request);
    if (!response.ok() || response->status != 200) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lynx
