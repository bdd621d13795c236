// SPDX-License-Identifier: Apache-2.0
#include "app/flags.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "lynx/cpu_target.h"

namespace lynx {
namespace {

using Config = ClusterConfig;

const char* Environment(const char* name, const char* alias) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : alias == nullptr ? nullptr : std::getenv(alias);
}

// Both roles share the flag; a file can tell them apart.
template <typename T>
void SetBoth(ClusterConfig& config, T RoleConfig::*field, T value) {
  config.context.*field = value;
  config.generation.*field = value;
}

// CLI11 takes "[a,b]" for a list but leaves the quotes of JSON in its items.
std::vector<std::string> WithoutQuotes(std::vector<std::string> values) {
  for (std::string& value : values) {
    if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
      value = value.substr(1, value.size() - 2);
    }
  }
  return values;
}

}  // namespace

template <typename T>
void ConfigFlags::Add(CLI::App& command, const char* name, const char* help,
                      std::function<void(ClusterConfig&, const T&)> apply) {
  auto value = std::make_shared<T>();
  CLI::Option* option = command.add_option(name, *value, help);
  overrides_.push_back([value, option, apply](ClusterConfig& config) {
    if (option->count() > 0) apply(config, *value);
    return absl::OkStatus();
  });
}

// field(config) points to what the flag sets.
template <typename Field>
void ConfigFlags::Set(CLI::App& command, const char* name, const char* help, Field field) {
  using T = std::remove_pointer_t<std::invoke_result_t<Field, ClusterConfig&>>;
  Add<T>(command, name, help, [field](ClusterConfig& c, const T& v) { *field(c) = v; });
}

ConfigFlags::ConfigFlags(CLI::App& command, Groups groups) {
  AddGeneral(command);
  if (groups.gateway) AddGateway(command);
  if (groups.engine) AddEngine(command);
  if (groups.engine) AddHandoff(command);
  if (groups.cluster) AddCluster(command);
  if (groups.cluster || groups.engine) AddColocated(command);
}

void ConfigFlags::AddGeneral(CLI::App& command) {
  command.add_option("--config", file_, "Cluster file (YAML); paths in it are relative to it");
  command.add_flag("--check-config", check_config, "Check the configuration and exit");
  Set(command, "model,--model", "Model: a GGUF file or a Hugging Face directory",
      [](Config& c) { return &c.model; });
  Set(command, "--log-level", "trace, debug, info, warn or error",
      [](Config& c) { return &c.log_level; });
  Set(command, "--max-model-len", "Longest prompt plus answer, in tokens (0: the model's)",
      [](Config& c) { return &c.max_model_len; });
  Set(command, "--shutdown-timeout", "Seconds that running requests get after SIGTERM",
      [](Config& c) { return &c.shutdown_timeout_s; });
}

void ConfigFlags::AddGateway(CLI::App& command) {
  Set(command, "--host", "Address the HTTP server listens on",
      [](Config& c) { return &c.hostname; });
  Set(command, "--port", "Port of the HTTP server (default 8000)",
      [](Config& c) { return &c.port; });
  Set(command, "--served-model-name", "Name (or names) of the model in the API",
      [](Config& c) { return &c.served_model_name; });
  Set(command, "--chat-template", "Jinja file used instead of the model's template",
      [](Config& c) { return &c.chat_template; });
  Set(command, "--generation-config",
      "auto: the model's generation_config.json sets defaults; vllm: neutral ones",
      [](Config& c) { return &c.generation_config; });
  Set(command, "--metrics-aliases", "vllm: metrics also under vLLM's names",
      [](Config& c) { return &c.metrics_aliases; });
  Set(command, "--max-logprobs", "Most logprobs a request may ask for",
      [](Config& c) { return &c.max_logprobs; });
  Set(command, "--scheduling-policy",
      "fcfs, or priority: requests may carry a priority, lower = earlier",
      [](Config& c) { return &c.scheduler.scheduling_policy; });
  Set(command, "--max-concurrent-requests",
      "More running and waiting requests are refused with 429 (default 1024)",
      [](Config& c) { return &c.max_concurrent_requests; });
  Set(command, "--request-timeout-secs",
      "Answers that take longer, from arrival to end, end with 504 (default 0: never)",
      [](Config& c) { return &c.request_timeout_s; });
  command.add_option("--api-key", api_keys_,
                     "Key that /v1 requests must bear (better: LYNX_API_KEY or --api-key-file)");
  Set(command, "--api-key-file", "File with one API key per line",
      [](Config& c) { return &c.api_key_file; });
  Add<std::vector<std::string>>(
      command, "--allowed-origins",
      "Web origins (or one JSON list of them) whose pages may use the API; *: all",
      [](Config& c, const std::vector<std::string>& v) { c.allowed_origins = WithoutQuotes(v); });
}

void ConfigFlags::AddEngine(CLI::App& command) {
  Set(command, "--device", "cpu or cuda", [](Config& c) { return &c.device; });
  Set(command, "--compute", "fast, or f32 (slow yardstick)", [](Config& c) { return &c.compute; });
  Set(command, "--cpu-target", absl::StrJoin(cpu::kTargetNames, ", ").c_str(),
      [](Config& c) { return &c.cpu_target; });
  Set(command, "--cache-dir",
      "Where packed weights and anchor tables are kept (default $XDG_CACHE_HOME/lynx or "
      "~/.cache/lynx; off: nowhere)",
      [](Config& c) { return &c.cache_dir; });
  Add<int>(command, "--tensor-parallel-size",
           "Ranks that share the model of each engine: GPUs, or parts of its threads (also -tp)",
           [](Config& c, const int& v) { SetBoth(c, &RoleConfig::tensor_parallel_size, v); });
  Add<int>(command, "--threads", "Compute threads of each engine (0: share the cores)",
           [](Config& c, const int& v) { SetBoth(c, &RoleConfig::threads, v); });
  Add<int>(command, "--max-num-seqs", "Most sequences in one step",
           [](Config& c, const int& v) { SetBoth(c, &RoleConfig::max_num_seqs, v); });
  Add<int>(command, "--max-num-batched-tokens", "Token budget of a step, and prefill chunk",
           [](Config& c, const int& v) { SetBoth(c, &RoleConfig::max_num_batched_tokens, v); });
  Set(command, "--itl-target-ms",
      "Prompt chunks shrink to keep steps of running answers below this (default 50; 0: off)",
      [](Config& c) { return &c.scheduler.itl_target_ms; });
  Set(command, "--queue-timeout-secs",
      "Longer waits in an engine's queue end with 503 (default 300; 0: never)",
      [](Config& c) { return &c.scheduler.queue_timeout_s; });
  AddKvMemory(command);
}

void ConfigFlags::AddKvMemory(CLI::App& command) {
  Set(command, "--kv-resident",
      "How the prefix cache keeps KV that nobody uses: bf16 (default), exact (packed without "
      "loss), or 8bit (packed smaller, with loss: answers may depend on what the cache holds)",
      [](Config& c) { return &c.kv.resident; });
  command.get_option("--kv-resident")->check(CLI::IsMember({"bf16", "exact", "8bit"}));
  auto size = std::make_shared<std::string>();
  CLI::Option* flag = command.add_option("--kv-memory", *size, "Memory of each KV pool, e.g. 2G");
  overrides_.push_back([size, flag](Config& c) -> absl::Status {
    if (flag->count() == 0) return absl::OkStatus();
    const auto bytes = ParseSize(*size);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--kv-memory: ", bytes.status().message()));
    }
    SetBoth(c, &RoleConfig::kv_memory, *bytes);
    return absl::OkStatus();
  });
}

void ConfigFlags::AddHandoff(CLI::App& command) {
  Set(command, "--codec", "KV codec of the hand-off: planes, or a baseline of docs/codecs.md",
      [](Config& c) { return &c.kv.codec; });
  Set(command, "--kv-target", "exact, or 8bit", [](Config& c) { return &c.kv.target; });
  Set(command, "--anchor",
      "What travels first with codec planes: default (the table, else k4v2), k2v2 .. k4v4, table, "
      "target, or auto",
      [](Config& c) { return &c.kv.anchor; });
  Set(command, "--anchor-table",
      "File of `lynx calibrate`, for --anchor default, table or auto (default: what calibrate has "
      "kept of this model in --cache-dir)",
      [](Config& c) { return &c.kv.anchor_table; });
  Add<std::string>(command, "--speculation",
                   "on or off: draft on the anchor while the rest travels",
                   [](Config& c, const std::string& v) { c.speculation.enabled = v != "off"; });
  command.get_option("--speculation")->check(CLI::IsMember({"on", "off"}));
  Set(command, "--verify",
      "Who makes tokens final before the KV has landed: residual (nobody), source (the prefill "
      "daemon judges drafts), hold (it goes on decoding instead), or auto (default, by estimate)",
      [](Config& c) { return &c.speculation.verify; });
  command.get_option("--verify")->check(CLI::IsMember({"residual", "source", "hold", "auto"}));
  Set(command, "--num-speculative-tokens",
      "Tokens that an answer with a long context drafts by itself before each verification: auto "
      "(default), or 0 .. 8",
      [](Config& c) { return &c.speculation.num_speculative_tokens; });
  command.get_option("--num-speculative-tokens")
      ->check(CLI::IsMember({"auto", "0", "1", "2", "3", "4", "5", "6", "7", "8"}));
}

void ConfigFlags::AddCluster(CLI::App& command) {
  Set(command, "--prefill", "How many prefill daemons to start (default 1)",
      [](Config& c) { return &c.context.num_instances; });
  Set(command, "--decode", "How many decode daemons to start (default 1)",
      [](Config& c) { return &c.generation.num_instances; });
}

void ConfigFlags::AddColocated(CLI::App& command) {
  CLI::Option* flag =
      command.add_flag("--colocated", colocated, "One engine that prefills and decodes");
  overrides_.push_back([this, flag](Config& c) {
    if (flag->count() > 0) c.colocated = colocated;
    return absl::OkStatus();
  });
}

absl::StatusOr<ClusterConfig> ConfigFlags::Resolve() const {
  ClusterConfig config;
  std::string file = file_;
  if (const char* env = Environment("LYNX_CONFIG", nullptr); file.empty() && env != nullptr) {
    file = env;
  }
  if (const char* env = Environment("LYNX_LOG_LEVEL", "VLLM_LOGGING_LEVEL")) {
    config.log_level = absl::AsciiStrToLower(env);
  }
  if (!file.empty()) {
    LYNX_ASSIGN_OR_RETURN(config, LoadClusterConfig(file, std::move(config)));
  }
  for (const auto& apply : overrides_) LYNX_RETURN_IF_ERROR(apply(config));
  // The flags' values pass the same checks as the file's.
  const auto checked = ParseClusterConfig(ToYaml(config), "flags");
  if (!checked.ok()) {
    const std::string message(checked.status().message());
    const size_t key = message.find(": ");
    return absl::InvalidArgumentError(key == std::string::npos ? message : message.substr(key + 2));
  }
  return config;
}

absl::StatusOr<std::vector<std::string>> ConfigFlags::ApiKeys(const ClusterConfig& config) const {
  if (!api_keys_.empty()) return api_keys_;
  if (const char* key = Environment("LYNX_API_KEY", "VLLM_API_KEY"); key != nullptr && *key != 0) {
    return std::vector<std::string>{key};
  }
  std::vector<std::string> keys;
  if (config.api_key_file.empty()) return keys;
  std::ifstream in(config.api_key_file);
  if (!in) {
    return absl::InvalidArgumentError(
        absl::StrCat("api_key_file: ", config.api_key_file, " cannot be read"));
  }
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) keys.push_back(line);
  }
  if (keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("api_key_file: ", config.api_key_file, " holds no key"));
  }
  return keys;
}

}  // namespace lynx
