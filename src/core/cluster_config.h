// SPDX-License-Identifier: Apache-2.0
// The one YAML file that describes a cluster: every program reads the same file and finds itself
// by name. Keys and their comments: configs/cluster.yaml. *Context* servers are prefill daemons,
// *generation* servers decode daemons (TensorRT-LLM's words); role keys may stand at top level,
// where both sections inherit them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

// Keys of context_servers, generation_servers and of the top level.
struct RoleConfig {
  int num_instances = 1;
  std::vector<std::string> urls;  // host:port of each instance's gRPC service
  int tensor_parallel_size = 1;   // ranks that share the model: threads, or GPUs
  int threads = 0;                // 0: the machine's cores
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int max_queue_size = 256;
  int64_t kv_memory = 0;  // bytes; 0: enough for four sequences of max_model_len, or the next
  double gpu_memory_fraction = 0.9;  // device cuda: of what is free once the weights are loaded
  int daemons_per_gpu = 1;           // that share its memory in equal parts
  bool enable_block_reuse = true;
};

struct ClusterConfig {
  std::string hostname = "127.0.0.1";
  int port = 8000;
  std::string model;
  std::vector<std::string> served_model_name;
  int max_retries = 1;
  int max_concurrent_requests = 1024;  // at the gateway
  int max_model_len = 0;               // 0: the model's
  std::string log_level = "info";
  std::string compute = "fast";
  std::string device = "cpu";
  std::string cpu_target = "auto";
  // Of packed weights and anchor tables; "": $XDG_CACHE_HOME/lynx or ~/.cache/lynx; off: none.
  std::string cache_dir;
  std::string chat_template;
  std::string generation_config = "auto";  // or "vllm": neutral defaults
  std::string api_key_file;
  std::vector<std::string> allowed_origins;  // CORS: "https://app.example", or "*"
  int shutdown_timeout_s = 30;
  int request_timeout_s = 0;  // from arrival to the end of the answer; 0: none
  int max_logprobs = 20;
  std::string metrics_aliases = "none";  // or "vllm": also under vLLM's names
  int64_t max_body_bytes = 32 << 20;
  bool colocated = false;  // generation servers prefill by themselves; no context servers

  RoleConfig context;
  RoleConfig generation;

  struct {
    std::string codec = "planes";
    std::string target = "exact";  // or "8bit"
    // How the prefix cache keeps what nobody uses: bf16, exact (packed losslessly), or 8bit
    // (packed with loss: what it gives back is not what was computed).
    std::string resident = "bf16";
    // What travels first with codec planes: default (the table, else k4v2), k2v2 .. k4v4, table,
    // target, auto.
    std::string anchor = "default";
    std::string anchor_table;  // a file of `lynx calibrate`; other anchors leave it unused
  } kv;
  struct {
    bool enabled = true;
    int max_draft_tokens = 64;
    double min_draft_survival = 0.05;
    std::string verify = "auto";  // or residual, source, hold: before the target KV has landed
    // Drafts of a decoding sequence before each verification: auto, or 0 .. 8.
    std::string num_speculative_tokens = "auto";
    int draft_context = 1024;  // tokens that such a draft reads
  } speculation;
  struct {
    std::string backend = "UCX";
    std::string ucx_tls;
    int kv_transfer_timeout_ms = 45000;
    int kv_lease_duration_s = 30;
    int64_t max_inflight_bytes = 4 << 20;
    bool adapt_window = true;
    int heartbeat_interval_ms = 250;
    int suspect_after_ms = 1500;
  } transceiver;
  struct {
    int max_local_prefill_length = 128;
  } conditional_disagg;
  struct {
    std::string scheduling_policy = "fcfs";  // or "priority": requests may carry one
    int itl_target_ms = 50;                  // of a step in which answers go on; 0: none
    bool fair_share = true;                  // between clients of one priority
    int queue_timeout_s = 300;               // 0: none
  } scheduler;
  int watchdog_s = 30;
};

// kInvalidArgument "FILE:LINE: KEY: reason" (unknown keys with the nearest known one, duplicates,
// wrong types, values out of range). Relative paths in the file are made relative to it.
absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path,
                                                ClusterConfig defaults = {});
absl::StatusOr<ClusterConfig> ParseClusterConfig(const std::string& yaml, const std::string& file,
                                                 ClusterConfig defaults = {});

// What no single key can tell: urls against num_instances, a model, sensible combinations.
absl::Status CheckClusterConfig(const ClusterConfig& config);

// kInvalidArgument names the key whose file is not there.
absl::Status CheckConfigFiles(const ClusterConfig& config);
// The effective configuration in the format that ParseClusterConfig reads.
std::string ToYaml(const ClusterConfig& config);

// "1.5G", "512K", "64" (bytes). Powers of 1024.
absl::StatusOr<int64_t> ParseSize(const std::string& text);

// The candidate that needs the fewest edits to become `word`; "" if nothing is near.
std::string NearestWord(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace lynx
