// SPDX-License-Identifier: Apache-2.0
#include "core/cluster_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <type_traits>

#include "lynx/cpu_target.h"
#include "yaml-cpp/yaml.h"

namespace lynx {
namespace {

// One key: how to read it and how to print it. A section is a list of keys, so that parsing,
// printing and the "nearest key" of a message all come from one table.
struct Key {
  std::string name;
  std::function<std::string(const YAML::Node&)> set;  // "" or the reason why not
  std::function<void(YAML::Emitter&)> print;
  std::vector<Key> section;  // not empty: a nested map
};

template <typename T>
std::string TypeName() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_integral_v<T>) return "an integer";
  if constexpr (std::is_floating_point_v<T>) return "a number";
  return "a string";
}

template <typename T>
Key Value(std::string name, T* out, std::optional<T> min = {}, std::optional<T> max = {}) {
  return {std::move(name),
          [=](const YAML::Node& node) -> std::string {
            T value{};
            if (!node.IsScalar() || !YAML::convert<T>::decode(node, value)) {
              return absl::StrCat("want ", TypeName<T>());
            }
            if constexpr (!std::is_same_v<T, std::string>) {
              if ((min && value < *min) || (max && !(value <= *max))) {
                return absl::StrCat(node.Scalar(), " is not in ", *min, "..", *max);
              }
            }
            *out = value;
            return "";
          },
          [=](YAML::Emitter& emitter) {
            if constexpr (std::is_same_v<T, std::string>) {
              emitter << YAML::DoubleQuoted << *out;
            } else if constexpr (std::is_floating_point_v<T>) {
              std::array<char, 32> text;  // the shortest that reads back as the same number
              const auto end = std::to_chars(text.data(), text.data() + text.size(), *out).ptr;
              emitter << std::string(text.data(), end);
            } else {
              emitter << *out;
            }
          },
          {}};
}

Key Choice(std::string name, std::string* out, std::vector<std::string> choices) {
  return {std::move(name),
          [=](const YAML::Node& node) -> std::string {
            if (!node.IsScalar()) return "want a string";
            std::string all;
            for (const std::string& c : choices) {
              if (node.Scalar() == c) {
                *out = c;
                return "";
              }
              absl::StrAppend(&all, all.empty() ? "" : ", ", c);
            }
            return absl::StrCat("'", node.Scalar(), "' is not one of ", all);
          },
          [=](YAML::Emitter& emitter) { emitter << *out; },
          {}};
}

Key Switch(std::string name, bool* out) { return Value<bool>(std::move(name), out); }

Key Size(std::string name, int64_t* out) {
  return {std::move(name),
          [=](const YAML::Node& node) -> std::string {
            if (!node.IsScalar()) return "want a size such as 512M";
            auto size = ParseSize(node.Scalar());
            if (!size.ok()) return std::string(size.status().message());
            *out = *size;
            return "";
          },
          [=](YAML::Emitter& emitter) { emitter << *out; },
          {}};
}

Key Strings(std::string name, std::vector<std::string>* out) {
  return {std::move(name),
          [=](const YAML::Node& node) -> std::string {
            std::vector<std::string> list;
            if (node.IsScalar())
              list.push_back(node.Scalar());
            else if (!node.IsSequence())
              return "want a string or a list of strings";
            for (const YAML::Node& item : node) {
              if (!item.IsScalar()) return "want a list of strings";
              list.push_back(item.Scalar());
            }
            *out = std::move(list);
            return "";
          },
          [=](YAML::Emitter& emitter) { emitter << YAML::Flow << *out; },
          {}};
}

// What a browser sends as Origin, scheme://host[:port], or * for all.
Key Origins(std::string name, std::vector<std::string>* out) {
  Key key = Strings(std::move(name), out);
  key.set = [read = key.set, out](const YAML::Node& node) -> std::string {
    if (std::string why = read(node); !why.empty()) return why;
    for (const std::string& origin : *out) {
      const size_t host = origin.find("://");
      const bool is_origin = host != 0 && host != std::string::npos && host + 3 < origin.size() &&
                             origin.find_first_of("/ ,\"'", host + 3) == std::string::npos;
      if (!is_origin && origin != "*") {
        return absl::StrCat("'", origin, "' is not an origin such as https://app.example, or *");
      }
    }
    return "";
  };
  return key;
}

// Above 0, at most 1.
Key Fraction(std::string name, double* out) {
  Key key = Value<double>(std::move(name), out, 0.0, 1.0);
  key.set = [read = key.set, out](const YAML::Node& node) -> std::string {
    std::string why = read(node);
    return why.empty() && *out == 0 ? "0 leaves nothing: want more, at most 1" : why;
  };
  return key;
}

// Another name of a key, which ReadRoot has read.
Key Alias(std::string name) {
  return {std::move(name), [](const YAML::Node&) { return std::string(); }, nullptr, {}};
}

Key Section(std::string name, std::vector<Key> keys) {
  return {std::move(name), nullptr, nullptr, std::move(keys)};
}

// A key that other engines know and that has no meaning here.
Key Refused(std::string name, std::string why) {
  return {std::move(name), [why](const YAML::Node&) { return why; }, nullptr, {}};
}

std::vector<Key> RoleKeys(RoleConfig* role) {
  return {
      Value<int>("tensor_parallel_size", &role->tensor_parallel_size, 1, 64),
      Value<int>("threads", &role->threads, 0, 1024),
      Value<int>("max_num_seqs", &role->max_num_seqs, 1, 4096),
      Value<int>("max_num_batched_tokens", &role->max_num_batched_tokens, 16, 65536),
      Value<int>("max_queue_size", &role->max_queue_size, 0, 1000000),
      Section("kv_cache_config", {Size("host_cache_size", &role->kv_memory),
                                  Fraction("free_gpu_memory_fraction", &role->gpu_memory_fraction),
                                  Value<int>("daemons_per_gpu", &role->daemons_per_gpu, 1, 64),
                                  Switch("enable_block_reuse", &role->enable_block_reuse)}),
  };
}

std::vector<Key> ServerKeys(RoleConfig* role) {
  std::vector<Key> keys = RoleKeys(role);
  keys.push_back(Value<int>("num_instances", &role->num_instances, 0, 1024));
  keys.push_back(Strings("urls", &role->urls));
  return keys;
}

std::vector<Key> ClusterKeys(ClusterConfig* c) {
  return {
      Value<std::string>("hostname", &c->hostname),
      Value<int>("port", &c->port, 0, 65535),
      Value<std::string>("model", &c->model),
      Strings("served_model_name", &c->served_model_name),
      Value<int>("max_retries", &c->max_retries, 0, 10),
      Value<int>("max_concurrent_requests", &c->max_concurrent_requests, 1, 1000000),
      Value<int>("max_model_len", &c->max_model_len, 0, 1 << 24),
      Choice("log_level", &c->log_level, {"trace", "debug", "info", "warn", "error"}),
      Choice("compute", &c->compute, {"fast", "f32"}),
      Choice("device", &c->device, {"cpu", "cuda"}),
      Choice("cpu_target", &c->cpu_target, {cpu::kTargetNames.begin(), cpu::kTargetNames.end()}),
      Value<std::string>("cache_dir", &c->cache_dir),
      Value<std::string>("chat_template", &c->chat_template),
      Choice("generation_config", &c->generation_config, {"auto", "vllm"}),
      Value<std::string>("api_key_file", &c->api_key_file),
      Origins("allowed_origins", &c->allowed_origins),
      Value<int>("shutdown_timeout_s", &c->shutdown_timeout_s, 0, 86400),
      Value<int>("request_timeout_s", &c->request_timeout_s, 0, 86400),
      Value<int>("max_logprobs", &c->max_logprobs, 0, 1000),
      Choice("metrics_aliases", &c->metrics_aliases, {"none", "vllm"}),
      Size("max_body_bytes", &c->max_body_bytes),
      Switch("colocated", &c->colocated),
      Value<int>("watchdog_s", &c->watchdog_s, 1, 86400),
      Section("context_servers", ServerKeys(&c->context)),
      Section("generation_servers", ServerKeys(&c->generation)),
      Section("kv", {Choice("codec", &c->kv.codec,
                            {"planes", "bf16", "bf16-lossless", "int8", "int8-channel", "fp8",
                             "int4", "int4-kivi", "cachegen", "paper"}),
                     Alias("memory_fraction"), Choice("target", &c->kv.target, {"exact", "8bit"}),
                     Choice("resident", &c->kv.resident, {"bf16", "exact", "8bit"}),
                     Choice("anchor", &c->kv.anchor,
                            {"default", "auto", "table", "target", "k2v2", "k2v3", "k2v4", "k3v2",
                             "k3v3", "k3v4", "k4v2", "k4v3", "k4v4"}),
                     Value<std::string>("anchor_table", &c->kv.anchor_table)}),
      Section("speculation",
              {Switch("enabled", &c->speculation.enabled),
               Value<int>("max_draft_tokens", &c->speculation.max_draft_tokens, 1, 1024),
               Value<double>("min_draft_survival", &c->speculation.min_draft_survival, 0.0, 1.0),
               Choice("verify", &c->speculation.verify, {"residual", "source", "hold", "auto"}),
               Choice("num_speculative_tokens", &c->speculation.num_speculative_tokens,
                      {"auto", "0", "1", "2", "3", "4", "5", "6", "7", "8"}),
               Value<int>("draft_context", &c->speculation.draft_context, 64, 1 << 24)}),
      Section(
          "cache_transceiver_config",
          {Choice("backend", &c->transceiver.backend, {"UCX"}),
           Value<std::string>("ucx_tls", &c->transceiver.ucx_tls),
           Value<int>("kv_transfer_timeout_ms", &c->transceiver.kv_transfer_timeout_ms, 100,
                      3600000),
           Value<int>("kv_lease_duration_s", &c->transceiver.kv_lease_duration_s, 1, 3600),
           Size("max_inflight_bytes", &c->transceiver.max_inflight_bytes),
           Switch("adapt_window", &c->transceiver.adapt_window),
           Value<int>("heartbeat_interval_ms", &c->transceiver.heartbeat_interval_ms, 10, 60000),
           Value<int>("suspect_after_ms", &c->transceiver.suspect_after_ms, 50, 600000)}),
      Section("scheduler",
              {Choice("scheduling_policy", &c->scheduler.scheduling_policy, {"fcfs", "priority"}),
               Value<int>("itl_target_ms", &c->scheduler.itl_target_ms, 0, 60000),
               Switch("fair_share", &c->scheduler.fair_share),
               Value<int>("queue_timeout_s", &c->scheduler.queue_timeout_s, 0, 86400)}),
      Section("conditional_disagg_config",
              {Value<int>("max_local_prefill_length",
                          &c->conditional_disagg.max_local_prefill_length, 0, 1 << 24)}),
      Refused("schedule_style", "has no meaning here: decode daemons call prefill daemons"),
  };
}

absl::Status At(const std::string& file, const YAML::Mark& mark, const std::string& key,
                const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", mark.line + 1, ": ", key, ": ", why));
}

absl::Status ReadMap(const std::string& file, const std::string& prefix, const YAML::Node& map,
                     const std::vector<Key>& keys);

absl::Status ReadEntry(const std::string& file, const std::string& path, const YAML::Node& name,
                       const YAML::Node& value, const std::vector<Key>& keys) {
  const auto key =
      std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == name.Scalar(); });
  if (key == keys.end()) {
    std::vector<std::string> names;
    for (const Key& k : keys) names.push_back(k.name);
    const std::string near = NearestWord(name.Scalar(), names);
    return At(file, name.Mark(), path,
              absl::StrCat("unknown key",
                           near.empty() ? "" : absl::StrCat("; did you mean '", near, "'?")));
  }
  if (!key->section.empty()) {
    if (value.IsNull()) return absl::OkStatus();
    if (!value.IsMap()) return At(file, value.Mark(), path, "want a section of keys");
    return ReadMap(file, absl::StrCat(path, "."), value, key->section);
  }
  if (const std::string why = key->set(value); !why.empty()) {
    return At(file, value.Mark(), path, why);
  }
  return absl::OkStatus();
}

absl::Status ReadMap(const std::string& file, const std::string& prefix, const YAML::Node& map,
                     const std::vector<Key>& keys) {
  std::set<std::string> seen;
  for (const auto& entry : map) {
    if (!entry.first.IsScalar()) return At(file, entry.first.Mark(), prefix, "want a plain key");
    const std::string path = prefix + entry.first.Scalar();
    if (!seen.insert(entry.first.Scalar()).second) {
      return At(file, entry.first.Mark(), path, "given twice");
    }
    LYNX_RETURN_IF_ERROR(ReadEntry(file, path, entry.first, entry.second, keys));
  }
  return absl::OkStatus();
}

void Print(YAML::Emitter& emitter, const std::vector<Key>& keys) {
  emitter << YAML::BeginMap;
  for (const Key& key : keys) {
    if (!key.section.empty()) {
      emitter << YAML::Key << key.name << YAML::Value;
      Print(emitter, key.section);
    } else if (key.print) {
      emitter << YAML::Key << key.name << YAML::Value;
      key.print(emitter);
    }
  }
  emitter << YAML::EndMap;
}

int EditDistance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

// kv.memory_fraction is kv_cache_config.free_gpu_memory_fraction of both roles.
absl::Status ReadMemoryFraction(const std::string& file, const YAML::Node& root,
                                RoleConfig* inherited) {
  const auto find = [](const YAML::Node& map, const char* key) {
    return map.IsDefined() && map.IsMap() ? map[key] : YAML::Node(YAML::NodeType::Undefined);
  };
  const YAML::Node fraction = find(find(root, "kv"), "memory_fraction");
  if (!fraction.IsDefined()) return absl::OkStatus();
  for (const YAML::Node& section :
       {root, find(root, "context_servers"), find(root, "generation_servers")}) {
    const YAML::Node other = find(find(section, "kv_cache_config"), "free_gpu_memory_fraction");
    if (!other.IsDefined()) continue;
    return At(file, fraction.Mark(), "kv.memory_fraction",
              absl::StrCat("is kv_cache_config.free_gpu_memory_fraction, which line ",
                           other.Mark().line + 1, " gives too"));
  }
  const Key key = Fraction("memory_fraction", &inherited->gpu_memory_fraction);
  if (const std::string why = key.set(fraction); !why.empty()) {
    return At(file, fraction.Mark(), "kv.memory_fraction", why);
  }
  return absl::OkStatus();
}

// Role keys at top level are the defaults of both sections, so they are read first.
absl::Status ReadRoot(const std::string& file, const YAML::Node& root, ClusterConfig* config) {
  RoleConfig inherited;
  const std::vector<Key> role_keys = RoleKeys(&inherited);
  std::vector<Key> keys = ClusterKeys(config);
  for (const Key& key : role_keys) keys.push_back(key);
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) continue;
    const bool is_role = std::any_of(role_keys.begin(), role_keys.end(),
                                     [&](const Key& k) { return k.name == entry.first.Scalar(); });
    if (!is_role) continue;
    LYNX_RETURN_IF_ERROR(
        ReadEntry(file, entry.first.Scalar(), entry.first, entry.second, role_keys));
  }
  LYNX_RETURN_IF_ERROR(ReadMemoryFraction(file, root, &inherited));
  config->context = inherited;
  config->generation = inherited;
  return ReadMap(file, "", root, keys);
}

void ResolvePath(const std::string& file, std::string* path) {
  if (path->empty() || path->front() == '/') return;
  *path = (std::filesystem::path(file).parent_path() / *path).lexically_normal().string();
}

}  // namespace

absl::StatusOr<ClusterConfig> ParseClusterConfig(const std::string& yaml, const std::string& file,
                                                 ClusterConfig config) {
  YAML::Node root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(yaml);
    if (documents.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", documents[1].Mark().line + 1, ": a second document"));
    }
    if (!documents.empty()) root = documents[0];
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ":", e.mark.line + 1, ": ", e.msg));
  }
  if (root.IsNull()) return config;
  if (!root.IsMap())
    return absl::InvalidArgumentError(absl::StrCat(file, ":1: want a map of keys"));
  LYNX_RETURN_IF_ERROR(ReadRoot(file, root, &config));
  ResolvePath(file, &config.model);
  ResolvePath(file, &config.api_key_file);
  ResolvePath(file, &config.chat_template);
  ResolvePath(file, &config.kv.anchor_table);
  if (config.cache_dir != "off") ResolvePath(file, &config.cache_dir);
  return config;
}

absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path, ClusterConfig defaults) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  }
  std::ifstream in(path);
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  std::stringstream text;
  text << in.rdbuf();
  return ParseClusterConfig(text.str(), path, std::move(defaults));
}

namespace {

absl::Status CheckAnchor(const ClusterConfig& config) {
  const auto& kv = config.kv;
  if (kv.codec != "planes" && kv.anchor != "default") {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.anchor: ", kv.anchor, ": only codec planes can be cut, not ", kv.codec));
  }
  if (kv.anchor == "table" && kv.anchor_table.empty()) {
    return absl::InvalidArgumentError("kv.anchor: table: kv.anchor_table is missing");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckClusterConfig(const ClusterConfig& config) {
  if (config.model.empty()) return absl::InvalidArgumentError("model: missing");
  LYNX_RETURN_IF_ERROR(CheckAnchor(config));
  if (config.hostname.empty()) return absl::InvalidArgumentError("hostname: empty");
  const auto& t = config.transceiver;
  if (t.suspect_after_ms < 2 * t.heartbeat_interval_ms) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache_transceiver_config.suspect_after_ms: ", t.suspect_after_ms,
                     " is less than two heartbeats of ", t.heartbeat_interval_ms, " ms"));
  }
  const auto check = [](const char* name, const RoleConfig& role) -> absl::Status {
    if (static_cast<int>(role.urls.size()) != role.num_instances) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ".urls: ", role.urls.size(), " addresses for num_instances ", role.num_instances));
    }
    std::set<std::string> seen;
    for (const std::string& url : role.urls) {
      const size_t colon = url.rfind(':');
      int port = 0;
      if (colon == std::string::npos || colon == 0 ||
          std::from_chars(url.data() + colon + 1, url.data() + url.size(), port).ptr !=
              url.data() + url.size() ||
          port < 1 || port > 65535) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ".urls: '", url, "' is not host:port"));
      }
      if (!seen.insert(url).second) {
        return absl::InvalidArgumentError(absl::StrCat(name, ".urls: '", url, "' is given twice"));
      }
    }
    return absl::OkStatus();
  };
  LYNX_RETURN_IF_ERROR(check("generation_servers", config.generation));
  if (config.generation.num_instances < 1) {
    return absl::InvalidArgumentError("generation_servers.num_instances: 0 is not in 1..1024");
  }
  if (config.colocated) return absl::OkStatus();
  if (config.context.num_instances < 1) {
    return absl::InvalidArgumentError(
        "context_servers.num_instances: 0 is not in 1..1024 (or set colocated: true)");
  }
  return check("context_servers", config.context);
}

absl::Status CheckConfigFiles(const ClusterConfig& config) {
  for (const auto& [key, path] : {std::pair("chat_template", &config.chat_template),
                                  std::pair("api_key_file", &config.api_key_file),
                                  std::pair("kv.anchor_table", &config.kv.anchor_table)}) {
    std::error_code error;
    if (!path->empty() && !std::filesystem::is_regular_file(*path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": ", *path, " is not a file"));
    }
  }
  return absl::OkStatus();
}

std::string ToYaml(const ClusterConfig& config) {
  ClusterConfig copy = config;
  YAML::Emitter emitter;
  Print(emitter, ClusterKeys(&copy));
  return std::string(emitter.c_str()) + "\n";
}

absl::StatusOr<int64_t> ParseSize(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a size such as 64K, 512M or 2G"));
  };
  if (error != std::errc() || !(value >= 0)) return bad();
  std::string suffix(end, text.data() + text.size());
  if (suffix.size() > 1 && (suffix.back() == 'B' || suffix.back() == 'b')) suffix.pop_back();
  if (suffix.size() > 1 && suffix.back() == 'i') suffix.pop_back();
  int shift = 0;
  if (!suffix.empty()) {
    const size_t unit = std::string("KMGT").find(static_cast<char>(std::toupper(suffix[0])));
    if (suffix.size() != 1 || unit == std::string::npos) return bad();
    shift = 10 * (static_cast<int>(unit) + 1);
  }
  value = std::ldexp(value, shift);
  if (value > 1e18) return bad();
  return static_cast<int64_t>(value);
}

std::string NearestWord(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  int best_distance = std::max<int>(2, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace lynx
