// SPDX-License-Identifier: Apache-2.0
// `lynx bench`: speeds of this machine, one JSON object a line, each with the bound that the same
// run measured; and of servers, as `vllm bench serve` prints them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/cluster_config.h"

namespace lynx {

struct BenchEngineOptions {
  ClusterConfig config;  // model, compute, cpu_target
  int threads = 0;
  std::vector<int> prefill = {512};  // prompt lengths
  std::vector<int> depth = {0};      // tokens already in the cache when decoding
  std::vector<int> batch = {1};      // sequences decoded together
  int repeats = 5;
};
absl::Status RunBenchEngine(const BenchEngineOptions& options);

struct BenchCodecOptions {
  ClusterConfig config;  // cpu_target
  std::vector<std::string> codecs;
  int head_dim = 64;
  int num_pages = 64;  // of 256 tokens
  int repeats = 5;
};
absl::Status RunBenchCodec(const BenchCodecOptions& options);

struct BenchAccuracyOptions {
  ClusterConfig config;  // model, compute, cpu_target
  int threads = 0;
  std::vector<std::string> codecs;  // empty: all
  std::vector<std::string> planes = {"k2v2", "k3v2", "k3v3", "k4v2",
                                     "k4v3", "k4v4", "k8v8", "exact"};  // prefixes of `planes`
  std::vector<int> prompt_tokens = {1024, 4096, 7500};
  int prompts = 40;  // of each length
  bool per_layer = false;
  std::string corpus = "bench/prompts";  // directory of text files
};
absl::Status RunBenchAccuracy(const BenchAccuracyOptions& options);

struct BenchIncastOptions {
  std::string link = "1gbit";  // of the receiver and of each sender; none: loopback, as it is
  std::string rtt = "0.2ms";
  double load = 0.8;  // of the receiver's link
  std::vector<int> senders = {1, 2, 4};
  std::vector<std::string> policies = {"lynx", "sender_strict", "two_streams", "fifo"};
  std::vector<int> seeds = {1, 2, 3};
  int requests = 240;  // of a run
  std::vector<int> prompt_tokens = {256, 512, 1024, 1536};
  std::string codec = "planes";
  int layers = 30, kv_heads = 3, head_dim = 64;  // SmolLM2-135M
  std::string json;                              // file to append to
};
absl::Status RunBenchIncast(const BenchIncastOptions& options);

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
  int rounds = 5;  // with peers

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
