// SPDX-License-Identifier: Apache-2.0
// kv.resident: what the prefix cache holds and finds in the same memory, and what a hit costs.
//
//   resident_bench MODEL [NUM_BLOCKS [NUM_PROMPTS [PROMPT_TOKENS]]]
//
// Every prompt once, then all of them again, the newest first; one JSON line for bf16 and one for
// exact. A prompt's time is that of its first token, alone on one thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/accuracy/prompts.h"
#include "bench/json_lines.h"
#include "engine/engine.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"

namespace lynx {
namespace {

struct Sizes {
  int num_blocks = 64;
  int num_prompts = 14;
  int prompt_tokens = 512;
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

class Run {
 public:
  explicit Run(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // Milliseconds to the first token.
  double FirstToken(const std::vector<TokenId>& prompt) {
    Request request;
    request.id = std::to_string(num_requests_++);
    request.prompt_ids = prompt;
    request.sampling.max_tokens = 1;
    bool finished = false;
    const auto begin = std::chrono::steady_clock::now();
    engine_->Submit(std::move(request), [&](EngineOutput out) {
      for (const TokenOutput& t : out.tokens) tokens_.push_back(t.id);
      finished |= out.finished();
    });
    while (!finished) engine_->Step();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
    while (engine_->Step()) continue;  // what is packed ahead
    return ms.count();
  }
  EngineStats stats() const { return engine_->stats(); }
  const std::vector<TokenId>& tokens() const { return tokens_; }

 private:
  std::unique_ptr<Engine> engine_;
  int num_requests_ = 0;
  std::vector<TokenId> tokens_;
};

absl::StatusOr<std::vector<TokenId>> Measure(bool pack, const Sizes& sizes, Model& model,
                                             const std::vector<AccuracyPrompt>& prompts) {
  EngineOptions options;
  options.num_kv_blocks = sizes.num_blocks;
  options.pack_cached_blocks = pack;
  LYNX_ASSIGN_OR_RETURN(auto engine, Engine::Create(options, model, {}));
  Run run(std::move(engine));
  std::vector<double> computed, found, restored;
  for (const AccuracyPrompt& p : prompts) computed.push_back(run.FirstToken(p.tokens));
  const EngineStats first = run.stats();
  EngineStats before = first;
  for (size_t i = prompts.size(); i-- > 0;) {
    const double ms = run.FirstToken(prompts[i].tokens);
    const EngineStats now = run.stats();
    const int64_t full = (sizes.prompt_tokens - 1) / kBlockSize * kBlockSize;
    const bool whole = now.prefix_hits - before.prefix_hits == full;
    const bool packed = now.restored_tokens - before.restored_tokens >= full - 2 * kBlockSize;
    if (whole) (packed ? restored : found).push_back(ms);
    before = now;
  }
  const double moved_bytes = static_cast<double>(before.block_bytes) / kBlockSize;
  PrintJson(
      {{"bench", "resident"},
       {"resident", pack ? "exact" : "bf16"},
       {"kv_bytes", first.blocks_total * first.block_bytes},
       {"prompts", sizes.num_prompts},
       {"prompt_tokens", sizes.prompt_tokens},
       {"held_tokens", first.blocks_cached * kBlockSize + first.packed_tokens},
       {"packed_tokens", first.packed_tokens},
       {"bits_per_element", first.packed_tokens == 0
                                ? 16.0
                                : 16.0 * first.packed_bytes / (first.packed_tokens * moved_bytes)},
       {"hit_tokens", before.prefix_hits - first.prefix_hits},
       {"computed_ms", Median(computed)},
       {"found_ms", Median(found)},
       {"restored_ms", Median(restored)},
       {"decode_gb_s",
        before.unpack_ns == 0 ? 0.0 : before.restored_tokens * moved_bytes / before.unpack_ns},
       {"encode_ms", 1e-6 * before.pack_ns}});
  return run.tokens();
}

absl::Status Main(int argc, char** argv) {
  if (argc < 2) return absl::InvalidArgumentError("a model is missing");
  Sizes sizes;
  int* const values[] = {&sizes.num_blocks, &sizes.num_prompts, &sizes.prompt_tokens};
  for (int i = 2; i < std::min(argc, 5); ++i) *values[i - 2] = std::atoi(argv[i]);
  const auto backend = cpu::CpuBackend::Create({.num_threads = 1});
  LYNX_ASSIGN_OR_RETURN(const auto model, Model::Load(argv[1], *backend, /*max_rows=*/512));
  LYNX_ASSIGN_OR_RETURN(const PromptSource source, OpenPromptSource("bench/prompts", argv[1]));
  LYNX_ASSIGN_OR_RETURN(const auto prompts,
                        BuildAccuracyPrompts(source, sizes.prompt_tokens, sizes.num_prompts));
  LYNX_ASSIGN_OR_RETURN(const auto bf16, Measure(false, sizes, *model, prompts));
  LYNX_ASSIGN_OR_RETURN(const auto exact, Measure(true, sizes, *model, prompts));
  return bf16 == exact ? absl::OkStatus() : absl::InternalError("the answers differ");
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) {
  const absl::Status status = lynx::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "resident_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
