// SPDX-License-Identifier: Apache-2.0
// kv.resident: what the prefix cache holds and finds in the same memory, and what a hit costs.
//
//   resident_bench MODEL [NUM_BLOCKS [NUM_PROMPTS [PROMPT_TOKENS]]]
//
// Every prompt once, then all of them again, the newest first; one JSON line each for bf16, exact
// and 8bit. A prompt's time is that of its first token, alone on one thread. Fails when bf16 and
// exact give different tokens; of 8bit it counts them.
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

double MsPerBlock(int64_t ns, int64_t num_tokens) {
  return num_tokens == 0 ? 0 : 1e-6 * ns * kBlockSize / num_tokens;
}

absl::StatusOr<std::vector<TokenId>> Measure(const char* name, Resident resident,
                                             const Sizes& sizes, Model& model,
                                             const std::vector<AccuracyPrompt>& prompts) {
  EngineOptions options;
  options.num_kv_blocks = sizes.num_blocks;
  options.resident = resident;
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
  const double token_bytes = static_cast<double>(before.block_bytes) / kBlockSize;
  const int64_t kv_bytes = first.blocks_total * first.block_bytes;
  const int64_t held_tokens = first.blocks_cached * kBlockSize + first.packed_tokens;
  PrintJson(
      {{"bench", "resident"},
       {"resident", name},
       {"kv_bytes", kv_bytes},
       {"prompts", sizes.num_prompts},
       {"prompt_tokens", sizes.prompt_tokens},
       {"held_tokens", held_tokens},
       {"held_tokens_per_gib", static_cast<double>(held_tokens) * (1 << 30) / kv_bytes},
       {"packed_tokens", first.packed_tokens},
       {"bits_per_element", first.packed_tokens == 0
                                ? 16.0
                                : 16.0 * first.packed_bytes / (first.packed_tokens * token_bytes)},
       {"hit_tokens", before.prefix_hits - first.prefix_hits},
       {"computed_ms", Median(computed)},
       {"found_ms", Median(found)},
       {"restored_ms", Median(restored)},
       {"encode_ms_per_block", MsPerBlock(before.pack_ns, before.encoded_tokens)},
       {"decode_ms_per_block", MsPerBlock(before.unpack_ns, before.restored_tokens)}});
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
  const auto measure = [&](const char* name, Resident resident) {
    return Measure(name, resident, sizes, *model, prompts);
  };
  LYNX_ASSIGN_OR_RETURN(const auto bf16, measure("bf16", Resident::kBf16));
  LYNX_ASSIGN_OR_RETURN(const auto exact, measure("exact", Resident::kExact));
  LYNX_ASSIGN_OR_RETURN(const auto eight, measure("8bit", Resident::k8Bit));
  int num_equal = 0;
  for (size_t i = 0; i < bf16.size(); ++i) num_equal += bf16[i] == eight[i] ? 1 : 0;
  PrintJson({{"bench", "resident"},
             {"resident", "8bit"},
             {"first_tokens", bf16.size()},
             {"equal_to_bf16", num_equal}});
  return bf16 == exact ? absl::OkStatus() : absl::InternalError("the answers differ");
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) {
  const absl::Status status = lynx::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "resident_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
