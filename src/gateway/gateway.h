// SPDX-License-Identifier: Apache-2.0
// The OpenAI-compatible HTTP server in front of a Generator.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lynx/generator.h"
#include "lynx/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lynx {

// Each limit is refused with an error object of its own before it can cost memory or an engine
// anything.
struct GatewayLimits {
  uint64_t max_body_bytes = 32u << 20;       // 413, also when only announced
  uint32_t max_header_bytes = 32u << 10;     // 431
  int max_json_depth = 64;                   // 400, as are the ones that follow
  size_t max_pending_body_bytes = 1u << 30;  // 503: of all bodies that are read or parsed
  int max_json_values = 4 << 20;
  int max_num_messages = 4096;
  int max_num_prompts = 1024;
  int max_num_samples = 128;   // n
  int max_num_choices = 1024;  // prompts * n
  int max_num_stops = 4;
  int max_stop_bytes = 1024;       // of one stop string
  int max_logprobs = 20;           // -1: up to the whole vocabulary
  int max_num_requests = 1024;     // 429: generating HTTP requests at one time
  int max_num_connections = 4096;  // 503
  // How long the end of an answer waits for the timeline of an engine that was asked to stop.
  std::chrono::milliseconds settle_timeout{2'000};
  // From the arrival of a request to the end of its answer: 504; 0: no limit.
  std::chrono::milliseconds request_timeout{0};
  // A client that takes longer is disconnected.
  std::chrono::milliseconds idle_timeout{75'000};    // between two requests of a connection
  std::chrono::milliseconds header_timeout{10'000};  // first to last byte of a header
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds write_timeout{60'000};  // until one event or answer is taken
};

// What a request that says nothing gets: generation_config.json, or nothing (neutral values).
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

struct GatewayOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                              // 0: the system chooses, see Gateway::port()
  std::vector<std::string> served_model_names;  // the first is the default; empty: ModelCard's
  std::vector<std::string> api_keys;            // empty: no authentication
  std::vector<std::string> allowed_origins;     // CORS; "*" = any; empty: none
  int max_model_len = 0;                        // 0: ModelCard's
  GatewayLimits limits;
  SamplingDefaults sampling_defaults;
  std::string tokenizer_config_json;  // for /tokenizer_info; empty: a minimal one
  std::string chat_template_source;   // the chat_template of /tokenizer_info; empty: as above
  bool accepts_priority = false;      // else only priority 0
  bool vllm_metric_names = false;     // emit "vllm:" twins of the "lynx:" metrics
  std::chrono::milliseconds drain_grace{0};  // not ready, but still serving, so routers notice
  std::chrono::milliseconds shutdown_timeout{30'000};  // for running requests, after the grace
  int num_io_threads = 2;
  int num_worker_threads = 2;  // templates and tokenizing
};

enum class ShutdownMode {
  kGraceful,  // readiness off, grace, refuse new work, finish running requests, abort the rest
  kNow,       // abort running requests with a final error event
};

// Everything passed to Create must outlive the gateway. Thread-safe.
class Gateway {
 public:
  // Binds and listens (connections queue up until Run). `chat_template` may be null: chat then
  // answers 400. Errors: kInvalidArgument for options, kUnavailable when the address is taken.
  static absl::StatusOr<std::unique_ptr<Gateway>> Create(GatewayOptions options,
                                                         Generator& generator,
                                                         const Tokenizer& tokenizer,
                                                         const ChatTemplate* chat_template,
                                                         const ModelCard& card);
  virtual ~Gateway() = default;

  virtual int port() const = 0;
  // Serves until Shutdown has completed. Call once.
  virtual void Run() = 0;
  // Returns at once; Run returns when it is done. kNow may follow kGraceful. Not for use inside a
  // signal handler.
  virtual void Shutdown(ShutdownMode mode) = 0;
};

}  // namespace lynx
