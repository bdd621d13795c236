// SPDX-License-Identifier: Apache-2.0
#include "app/gateway_command.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "app/build_engine.h"
#include "app/stop_signals.h"
#include "core/log.h"
#include "formats/model_files.h"
#include "gateway/gateway.h"
#include "lynx/kv_layout.h"
#include "nlohmann/json.hpp"
#include "rpc/cluster_client.h"
#include "spdlog/spdlog.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lynx {
namespace {

// The file beside the weights, or "" when there is none.
std::string ReadBeside(const std::string& model, const char* name) {
  const std::filesystem::path path(model);
  if (!std::filesystem::is_directory(path)) return "";
  std::ifstream in(path / name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const ClusterConfig& config) {
  SamplingDefaults defaults;
  if (config.generation_config != "auto") return defaults;
  const std::string text = ReadBeside(config.model, "generation_config.json");
  if (text.empty()) return defaults;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.model, "/generation_config.json: not a JSON object"));
  }
  const auto read = [&](const char* key, auto* out) {
    if (json.contains(key) && json[key].is_number()) *out = json[key];
  };
  read("temperature", &defaults.temperature);
  read("top_p", &defaults.top_p);
  read("min_p", &defaults.min_p);
  read("repetition_penalty", &defaults.repetition_penalty);
  read("top_k", &defaults.top_k);
  if (json.contains("do_sample") && json["do_sample"] == false) defaults.temperature = 0.0f;
  return defaults;
}

// "" when there is none.
absl::StatusOr<std::string> ReadTemplateSource(const ClusterConfig& config) {
  if (config.chat_template.empty()) {
    absl::StatusOr<std::string> source = ChatTemplate::FindSource(config.model);
    if (absl::IsNotFound(source.status())) return "";
    return source;
  }
  std::ifstream in(config.chat_template);
  if (!in) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat_template: ", config.chat_template, " cannot be read"));
  }
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(const std::string& source,
                                                               const Tokenizer& tokenizer) {
  if (source.empty()) return std::unique_ptr<ChatTemplate>();
  const std::string bos = tokenizer.bos_token();
  const std::string eos = tokenizer.eos_token();
  return ChatTemplate::Create(source, tokenizer.bos_id() < 0 ? nullptr : &bos,
                              tokenizer.eos_id() < 0 ? nullptr : &eos);
}

// The longest sequence that the model and the configured KV pool of every role take.
absl::StatusOr<int> MaxModelLen(const ClusterConfig& config, const ModelConfig& model) {
  const KvLayout layout{.num_layers = model.num_layers,
                        .num_kv_heads = model.num_kv_heads,
                        .head_dim = model.head_dim,
                        .dtype = config.compute == "f32" ? KvDtype::kF32 : KvDtype::kBf16};
  int longest = config.max_model_len == 0 ? model.max_model_len
                                          : std::min(config.max_model_len, model.max_model_len);
  std::vector<const RoleConfig*> roles = {&config.generation};
  if (!config.colocated) roles.push_back(&config.context);
  for (const RoleConfig* role : roles) {
    if (role->kv_memory == 0) continue;  // the daemon chooses
    LYNX_ASSIGN_OR_RETURN(const int blocks, NumKvBlocks(role->kv_memory, layout));
    longest = static_cast<int>(std::min<int64_t>(longest, int64_t{blocks} * kBlockSize));
  }
  return longest;
}

absl::StatusOr<ModelCard> MakeCard(const ClusterConfig& config, const ModelConfig& model,
                                   const Tokenizer& tokenizer) {
  ModelCard card;
  card.name = DefaultModelName(config.model);
  LYNX_ASSIGN_OR_RETURN(card.max_model_len, MaxModelLen(config, model));
  card.vocab_size = model.vocab_size;
  card.eos_ids = model.eos_ids;
  if (card.eos_ids.empty() && tokenizer.eos_id() >= 0) card.eos_ids = {tokenizer.eos_id()};
  return card;
}

}  // namespace

absl::Status RunGateway(const ClusterConfig& config, const std::vector<std::string>& api_keys) {
  LYNX_RETURN_IF_ERROR(InitLog("gateway", config.log_level));
  StopSignals signals;
  ModelConfig model;
  {
    LYNX_ASSIGN_OR_RETURN(const auto files, ModelFiles::Open(config.model));
    model = files->config();
  }
  LYNX_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(config.model));
  LYNX_ASSIGN_OR_RETURN(const std::string template_source, ReadTemplateSource(config));
  LYNX_ASSIGN_OR_RETURN(const auto chat_template, MakeChatTemplate(template_source, *tokenizer));
  LYNX_ASSIGN_OR_RETURN(const ModelCard card, MakeCard(config, model, *tokenizer));

  GatewayOptions options;
  options.host = config.hostname;
  options.port = config.port;
  options.served_model_names = config.served_model_name;
  options.api_keys = api_keys;
  options.allowed_origins = config.allowed_origins;
  options.max_model_len = card.max_model_len;
  options.limits.max_logprobs = config.max_logprobs;
  options.limits.max_num_requests = config.max_concurrent_requests;
  options.accepts_priority = config.scheduler.scheduling_policy == "priority";
  options.vllm_metric_names = config.metrics_aliases == "vllm";
  options.limits.max_body_bytes = static_cast<uint64_t>(config.max_body_bytes);
  options.limits.request_timeout = std::chrono::seconds(config.request_timeout_s);
  options.shutdown_timeout = std::chrono::seconds(config.shutdown_timeout_s);
  options.tokenizer_config_json = ReadBeside(config.model, "tokenizer_config.json");
  options.chat_template_source = template_source;
  LYNX_ASSIGN_OR_RETURN(options.sampling_defaults, ReadSamplingDefaults(config));

  ClusterClientOptions cluster;
  cluster.decode_addresses = config.generation.urls;
  if (!config.colocated) cluster.prefill_addresses = config.context.urls;
  cluster.max_retries = config.max_retries;
  const auto client = ClusterClient::Create(cluster);
  LYNX_ASSIGN_OR_RETURN(const auto gateway, Gateway::Create(std::move(options), *client, *tokenizer,
                                                            chat_template.get(), card));
  spdlog::info("HTTP on {}:{}", config.hostname, gateway->port());
  signals.OnStop([&](int count) {
    gateway->Shutdown(count == 1 ? ShutdownMode::kGraceful : ShutdownMode::kNow);
  });
  gateway->Run();
  signals.End();
  spdlog::info("stopped");
  return absl::OkStatus();
}

}  // namespace lynx
