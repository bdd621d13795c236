// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/sample.h"

#include <algorithm>

#include "app/http_client.h"
#include "nlohmann/json.hpp"

namespace lynx {
namespace {

using nlohmann::json;

double Seconds(const json& ms) { return ms.get<double>() / 1e3; }

// The running maximum of a list of milliseconds, as seconds since `origin_ms`.
std::vector<double> Since(double origin_ms, const json& list) {
  std::vector<double> times;
  double latest = 0;
  for (const json& ms : list) {
    latest = std::max(latest, (ms.get<double>() - origin_ms) / 1e3);
    times.push_back(latest);
  }
  return times;
}

void ReadTimeline(const json& lynx, HandoffSample* sample) {
  const json& events = lynx.at("events_ms");
  const double first_ms = lynx.at("token_ms").at(0);
  // A hand-off of one stage is refined as it lands, and reports nothing in between.
  const double refined_ms = events.value("refined", first_ms);
  const double landed_ms = events.value("target_landed", refined_ms);
  const auto after_first = [&](double ms) { return std::max(0.0, (ms - first_ms) / 1e3); };
  sample->anchor_s = after_first(events.value("anchor_landed", landed_ms));
  sample->landed_s = after_first(landed_ms);
  sample->refined_s = after_first(refined_ms);
  sample->judged_s = after_first(events.value("verified", refined_ms));
  sample->ttft_s = first_ms / 1e3;
  sample->ttst_s = Seconds(lynx.at("token_ms").at(1));
  sample->stall_s = lynx.value("longest_stall_ms", 0.0) / 1e3;
  sample->verified_s = Since(first_ms, lynx.at("token_ms"));
  sample->provisional_s = Since(first_ms, lynx.at("provisional_ms"));
  const json& bytes = lynx.at("stage_bytes");
  sample->bytes = {bytes.at("anchor"), bytes.at("residual"), bytes.at("exact")};
  sample->drafted = lynx.at("drafted");
  sample->accepted = lynx.at("accepted");
  sample->handoffs = lynx.at("handoffs");
  sample->verify = lynx.at("verify");
  sample->verify_rounds = lynx.at("verify_rounds");
  sample->verified_by_source = lynx.at("verified_by_source");
  sample->anchor = lynx.value("anchor", "");
}

}  // namespace

absl::StatusOr<HandoffSample> ParseHandoffAnswer(const std::string& body) {
  HandoffSample sample;
  try {
    const json answer = json::parse(body);
    const json& choice = answer.at("choices").at(0);
    sample.tokens = choice.at("token_ids").get<std::vector<TokenId>>();
    sample.text = choice.at("text");
    ReadTimeline(answer.at("usage").at("lynx"), &sample);
  } catch (const json::exception& e) {
    return absl::InternalError(absl::StrCat("the gateway's answer: ", e.what()));
  }
  return sample;
}

absl::StatusOr<HandoffSample> MeasureHandoff(int port, const HandoffPrompt& prompt, int max_tokens,
                                             const std::string& verify) {
  const json body = {
      {"prompt", prompt.tokens},  {"max_tokens", max_tokens},
      {"temperature", 0},         {"ignore_eos", true},
      {"return_token_ids", true}, {"lynx", {{"timeline", true}, {"verify", verify}}}};
  HttpRequest request;
  request.host = "127.0.0.1";
  request.port = port;
  request.method = "POST";
  request.target = "/v1/completions";
  request.body = body.dump();
  LYNX_ASSIGN_OR_RETURN(const HttpResponse response, SendHttp(request));
  if (response.status != 200) {
    return absl::UnavailableError(
        absl::StrCat("the gateway answers ", response.status, ": ", response.body));
  }
  return ParseHandoffAnswer(response.body);
}

}  // namespace lynx
