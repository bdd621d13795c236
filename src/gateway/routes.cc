// SPDX-License-Identifier: Apache-2.0
#include "gateway/routes.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr std::string_view kGet = "GET, HEAD, OPTIONS";
constexpr std::string_view kPost = "POST, OPTIONS";
constexpr std::string_view kBoth = "GET, HEAD, POST, OPTIONS";
constexpr std::string_view kModelPrefix = "/v1/models/";

struct Entry {
  std::string_view path;
  Route route;
  std::string_view allow;
};

constexpr Entry kEntries[] = {
    {"/v1/models", Route::kModels, kGet},
    {"/v1/completions", Route::kCompletions, kPost},
    {"/v1/chat/completions", Route::kChatCompletions, kPost},
    {"/tokenize", Route::kTokenize, kPost},
    {"/v1/tokenize", Route::kTokenize, kPost},
    {"/detokenize", Route::kDetokenize, kPost},
    {"/v1/detokenize", Route::kDetokenize, kPost},
    {"/tokenizer_info", Route::kTokenizerConfig, kGet},
    {"/v1/tokenizer_info", Route::kTokenizerConfig, kGet},
    {"/health", Route::kHealth, kGet},
    {"/ping", Route::kHealth, kBoth},
    {"/health_generate", Route::kHealthGenerate, kGet},
    {"/live", Route::kLive, kGet},
    {"/ready", Route::kReady, kGet},
    {"/metrics", Route::kMetrics, kGet},
    {"/version", Route::kVersion, kGet},
    {"/load", Route::kLoad, kGet},
};

bool Allows(std::string_view allow, std::string_view method) {
  while (!allow.empty()) {
    const size_t comma = std::min(allow.find(", "), allow.size());
    if (allow.substr(0, comma) == method) return true;
    allow.remove_prefix(std::min(comma + 2, allow.size()));
  }
  return false;
}

}  // namespace

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  RouteMatch match;
  match.needs_key = path == "/v1" || path.starts_with("/v1/");
  for (const Entry& entry : kEntries) {
    if (path != entry.path) continue;
    match.route = entry.route;
    match.pattern = entry.path;
    match.allow = entry.allow;
  }
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    match.route = Route::kModel;
    match.pattern = "/v1/models/{id}";
    match.allow = kGet;
    match.model_id = path.substr(kModelPrefix.size());
  }
  match.is_method_allowed = Allows(match.allow, method);
  match.takes_json = match.allow == kPost && method == "POST";
  return match;
}

}  // namespace lynx
