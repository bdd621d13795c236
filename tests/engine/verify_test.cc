// SPDX-License-Identifier: Apache-2.0
// verify: source, hold and auto: final tokens from the prefill side before the target has landed.
#include <algorithm>

#include "engine_fixture.h"

namespace lynx {
namespace {

using Stage = ScriptedLink::Stage;

constexpr VerifyMode kModes[] = {VerifyMode::kResidual, VerifyMode::kSource, VerifyMode::kHold,
                                 VerifyMode::kAuto};
constexpr VerifyMode kAskingModes[] = {VerifyMode::kSource, VerifyMode::kHold, VerifyMode::kAuto};

EngineOptions Options(VerifyMode mode) {
  EngineOptions options = SmallOptions();
  options.verify = mode;
  return options;
}

// Greedy and sampled ones, some with penalties, minimum lengths or stop tokens in their text.
std::vector<Request> Mixed(int n) {
  std::vector<Request> requests;
  for (int i = 0; i < n; ++i) {
    Request r = MakeRequest("r" + std::to_string(i), RandomPrompt(1 + 31 * i, 300 + i), 5 + 6 * i,
                            i % 3 == 0 ? 0 : 0.8f, i);
    if (i % 4 == 1) r.sampling.frequency_penalty = 0.7f;
    if (i % 4 == 2) r.sampling.repetition_penalty = 1.2f;
    if (i % 5 == 3) r.sampling.stop_token_ids = {Alone(r)[3 + i]};
    if (i % 5 == 4) {
      r.sampling.min_tokens = 8;
      r.sampling.stop_token_ids = {Alone(r)[4]};
    }
    requests.push_back(std::move(r));
  }
  return requests;
}

std::vector<std::vector<TokenId>> TextsAlone(const std::vector<Request>& requests) {
  std::vector<std::vector<TokenId>> texts;
  for (const Request& r : requests) texts.push_back(Alone(r));
  return texts;
}

// N6 over the matrix; later stages land after a while, so that there is something to verify.
TEST(Verify, TextIsTheColocatedText) {
  const std::vector<Request> requests = Mixed(12);
  const auto want = TextsAlone(requests);
  for (const VerifyMode mode : kModes) {
    for (const int chunk : {7, 96}) {
      for (const int anchor_bits : {1, 3, 7}) {
        EngineOptions options = Options(mode);
        options.max_num_batched_tokens = chunk;
        Pair pair(options, options);
        pair.link.anchor_bits = anchor_bits;
        int asked = 0;
        pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked % 40 == 0; };
        for (const Request& r : requests) pair.Submit(r);
        pair.RunAll();
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(pair.clients[requests[i].id].tokens, want[i])
              << "request " << i << " " << Name(mode) << " chunk " << chunk << " anchor bits "
              << anchor_bits;
        }
        const EngineStats s = pair.decode->stats();
        EXPECT_EQ(s.source_tokens > 0, mode != VerifyMode::kResidual) << Name(mode);
        EXPECT_EQ(s.source_refusals, 0);
        EXPECT_TRUE(mode != VerifyMode::kHold || s.draft_tokens == 0);
        pair.ExpectNoLeak();
      }
    }
  }
}

}  // namespace
}  // namespace lynx
