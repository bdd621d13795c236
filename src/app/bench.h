// SPDX-License-Identifier: Apache-2.0
// `lynx bench`: speeds of this machine, one JSON object a line, each with the bound that the same
// run measured.
#pragma once

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
  double load = 0.8;           // of the receiver's link
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

}  // namespace lynx
