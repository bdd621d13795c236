// SPDX-License-Identifier: Apache-2.0
// Which path and method mean what.
#pragma once

#include <string>
#include <string_view>

namespace lynx {

enum class Route {
  kNone,
  kModels,
  kModel,
  kCompletions,
  kChatCompletions,
  kTokenize,
  kDetokenize,
  kTokenizerConfig,
  kHealth,
  kHealthGenerate,
  kLive,
  kReady,
  kMetrics,
  kVersion,
  kLoad,
};

struct RouteMatch {
  Route route = Route::kNone;
  std::string_view pattern = "none";  // bounded set: a label of metrics
  std::string_view allow;             // methods, as the Allow header lists them
  bool is_method_allowed = false;
  bool needs_key = false;   // everything under /v1/
  bool takes_json = false;  // a POST with a JSON body
  std::string model_id;     // kModel
};

// `path` is percent-decoded. HEAD counts as GET.
RouteMatch MatchRoute(std::string_view method, std::string_view path);

}  // namespace lynx
