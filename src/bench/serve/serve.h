// SPDX-License-Identifier: Apache-2.0
// `lynx bench serve`: a load on servers, as `vllm bench serve` makes and prints it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct BenchServeOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::vector<std::string> peers;  // NAME=URL: side by side with these
  std::string label = "lynx";      // name of the server at base_url
  std::string endpoint = "/v1/completions";
  std::string model;  // "" = the first of /v1/models
  std::string api_key;

  std::string dataset_name = "random";  // or "prompts"
  std::string dataset_path;             // of "prompts"
  int num_prompts = 1000;
  int distinct_prompts = 0;  // of "random"; 0: all differ
  int random_input_len = 1024, random_output_len = 128;
  double random_range_ratio = 0;
  int custom_output_len = 256;  // of "prompts" that do not say
  uint64_t seed = 0;

  double request_rate = std::numeric_limits<double>::infinity();  // per second
  double burstiness = 1;
  int max_concurrency = 0;  // 0: no limit
  double max_seconds = 0;   // 0: no limit
  int num_warmups = 0;
  int ready_check_timeout_s = 600;
  int rounds = 5;           // with peers
  double turn_pause_s = 0;  // with peers

  bool ignore_eos = false;
  double temperature = -1;           // negative: the server's
  std::string extra_body;            // JSON object
  std::vector<std::string> goodput;  // "ttft:200", "tpot:50", "e2el:1000"; ms
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> metric_percentiles = {99};
  std::string save_result, expect;  // files
  bool save_detailed = false;
};
absl::Status RunBenchServe(const BenchServeOptions& options);

}  // namespace lynx
