// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/flags.h"

#include <cstdlib>
#include <limits>

#include "app/command.h"
#include "bench/serve/report.h"

namespace lynx {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void AddServerFlags(CLI::App& command, BenchServeOptions* o) {
  command.add_option("--base-url", o->base_url, "The server: http://host:port")
      ->capture_default_str();
  command
      .add_option("--peer", o->peers,
                  "NAME=URL: the same load on this server too, in alternation; repeat for more.\n"
                  "Prints JSON lines: every round, medians with spread, and ratios to each peer")
      ->take_all();
  command.add_option("--rounds", o->rounds, "Rounds with peers")
      ->check(CLI::Range(5, 10000))
      ->capture_default_str();
  command
      .add_option("--turn-pause-sec", o->turn_pause_s,
                  "Rest before each server's turn, for what still spins after the one before")
      ->check(NumberIn(0, 3600))
      ->capture_default_str();
  command.add_option("--label", o->label, "Name of the server at --base-url in reports")
      ->capture_default_str();
  command.add_option("--endpoint", o->endpoint, "Path of the API")
      ->check(CLI::IsMember({"/v1/completions", "/v1/chat/completions"}))
      ->capture_default_str();
  command.add_option("--model", o->model,
                     "Served model name (default: the first of /v1/models; peers' always is)");
  const char* key = std::getenv("OPENAI_API_KEY");
  if (key != nullptr) o->api_key = key;
  command.add_option("--api-key", o->api_key, "Key for all servers (or OPENAI_API_KEY)")
      ->envname("LYNX_API_KEY");
}

void AddDatasetFlags(CLI::App& command, BenchServeOptions* o) {
  command.add_option("--dataset-name", o->dataset_name, "random words, or prompts of a file")
      ->check(CLI::IsMember({"random", "prompts"}))
      ->capture_default_str();
  command.add_option("--dataset-path", o->dataset_path,
                     "Of prompts: lines of {\"prompt\": \"…\", \"output_tokens\": 64}");
  command.add_option("--num-prompts", o->num_prompts, "How many requests (of a round)")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  command
      .add_option("--distinct-prompts", o->distinct_prompts,
                  "Of random: only so many different ones, in turn (0: all differ)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--random-input-len", o->random_input_len, "Tokens of a random prompt, about")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  command.add_option("--random-output-len", o->random_output_len, "max_tokens of random prompts")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  command
      .add_option("--random-range-ratio", o->random_range_ratio,
                  "Both lengths are uniform within this share around theirs")
      ->check(NumberIn(0, 0.999))
      ->capture_default_str();
  command
      .add_option("--custom-output-len", o->custom_output_len,
                  "max_tokens of prompts that do not say")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  command.add_option("--seed", o->seed, "Of prompts and arrivals")->capture_default_str();
}

void AddTrafficFlags(CLI::App& command, BenchServeOptions* o) {
  command.add_option("--request-rate", o->request_rate, "Requests per second, or inf")
      ->check(NumberIn(1e-6, kInfinity))
      ->capture_default_str();
  command
      .add_option("--burstiness", o->burstiness,
                  "Shape of the gamma-distributed gaps: 1 Poisson, less in bursts, inf even")
      ->check(NumberIn(1e-6, kInfinity))
      ->capture_default_str();
  command.add_option("--max-concurrency", o->max_concurrency, "Requests at one time (0: no limit)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--max-seconds", o->max_seconds, "Send nothing after this (0: no limit)")
      ->check(NumberIn(0, 1e9));
  command
      .add_option("--num-warmups", o->num_warmups,
                  "Requests before the run (0: none; with peers as many as run at one time)")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--ready-check-timeout-sec", o->ready_check_timeout_s,
                  "How long a server that is away or loading is waited for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_flag("--ignore-eos", o->ignore_eos, "Answers of full length");
  command.add_option("--temperature", o->temperature, "0 is greedy (default: the server's)")
      ->check(NumberIn(0, 100));
  command.add_option("--extra-body", o->extra_body, "JSON object with more members of a request");
}

void AddReportFlags(CLI::App& command, BenchServeOptions* o) {
  command.add_option("--goodput", o->goodput,
                     "Limits in ms that a good request meets: ttft:200 tpot:50 e2el:1000");
  command.add_option("--percentile-metrics", o->percentile_metrics, "Which latencies to report")
      ->delimiter(',')
      ->check(CLI::IsMember(ServeLatencyNames()))
      ->capture_default_str();
  command.add_option("--metric-percentiles", o->metric_percentiles, "Which percentiles of them")
      ->delimiter(',')
      ->check(NumberIn(0, 100))
      ->capture_default_str();
  command.add_option("--save-result", o->save_result, "JSON file for the result (not with peers)");
  command.add_flag("--save-detailed", o->save_detailed, "With times and texts of every request");
  command.add_option("--expect", o->expect,
                     "A detailed result: answers to the same prompts must be the same");
}

}  // namespace

void AddBenchServeFlags(CLI::App& command, BenchServeOptions* options) {
  AddServerFlags(command, options);
  AddDatasetFlags(command, options);
  AddTrafficFlags(command, options);
  AddReportFlags(command, options);
}

}  // namespace lynx
