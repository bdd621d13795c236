// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx_settings.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>

namespace lynx {
namespace {

// What device memory is to UCX; unknown: this program gives it none. The emulated device's is the
// host's (tests/simt).
constexpr ucs_memory_type_t kDeviceMemory = LYNX_UCX_DEVICE_MEMORY;

struct Setting {
  const char* environment;  // the user's say, which wins
  const char* key;          // what ucp_config_modify knows: no transport's prefix (UCX 1.13)
  const char* value;
};

// For idle connections; those with data under way are watched by TCP_USER_TIMEOUT and heartbeats.
constexpr Setting kKeepalive = {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "1s"};
constexpr Setting kTcp[] = {
    // A host that does not answer must not hold up the thread that sends heartbeats to the others.
    {"UCX_TCP_KEEPIDLE", "KEEPIDLE", "1s"},
    {"UCX_TCP_KEEPINTVL", "KEEPINTVL", "1s"},
    {"UCX_TCP_KEEPCNT", "KEEPCNT", "1"},
};

// Endpoints with peer error handling use shared memory only with this.
constexpr Setting kSharedMemory = {"UCX_POSIX_ERROR_HANDLING", "MM_ERROR_HANDLING", "y"};

bool UserSet(const char* variable) { return std::getenv(variable) != nullptr; }

// UCX installs handlers for these signals when it is loaded; faults are ours (and a sanitizer's) to
// report.
void RestoreSignalHandlers() {
  if (UserSet("UCX_HANDLE_ERRORS") || UserSet("UCX_ERROR_SIGNALS")) return;
  for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
}

absl::Status Apply(const Setting& setting, ucp_config_t* config) {
  if (UserSet(setting.environment)) return absl::OkStatus();
  const ucs_status_t status = ucp_config_modify(config, setting.key, setting.value);
  if (status == UCS_OK) return absl::OkStatus();
  return UcxError(absl::StrCat("UCX setting ", setting.key, "=", setting.value), status);
}

// A key of a transport that is not used would be reported by UCX as invalid.
absl::Status ApplySettings(const UcxOptions& options, ucp_config_t* config) {
  std::string tls_option = options.tls.empty() ? "tcp,self" : options.tls;
  if (options.use_device != nullptr && kDeviceMemory == UCS_MEMORY_TYPE_CUDA) tls_option += ",cuda";
  LYNX_RETURN_IF_ERROR(Apply({"UCX_TLS", "TLS", tls_option.c_str()}, config));
  const char* user_tls = std::getenv("UCX_TLS");
  const std::string tls = user_tls != nullptr ? user_tls : tls_option;
  const auto uses = [&tls](const char* transport) {
    return tls.find(transport) != std::string::npos;
  };
  LYNX_RETURN_IF_ERROR(Apply(kKeepalive, config));
  if (uses("tcp") || uses("all")) {
    for (const Setting& setting : kTcp) LYNX_RETURN_IF_ERROR(Apply(setting, config));
  }
  if (uses("posix") || uses("sysv") || uses("sm") || uses("all")) {
    LYNX_RETURN_IF_ERROR(Apply(kSharedMemory, config));
  }
  return absl::OkStatus();
}

}  // namespace

bool BuiltForDeviceMemory() { return kDeviceMemory != UCS_MEMORY_TYPE_UNKNOWN; }

bool ReachesDeviceMemory(ucp_context_h context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context, &attributes) == UCS_OK &&
         (attributes.memory_types & UCS_BIT(kDeviceMemory)) != 0;
}

ucs_memory_type_t UcxMemoryType(MemoryType type) {
  return type == MemoryType::kDevice ? kDeviceMemory : UCS_MEMORY_TYPE_HOST;
}

std::string WhyNoDeviceMemory() {
  if (!BuiltForDeviceMemory()) return "this build was configured without LYNX_UCX_CUDA";
  return absl::StrCat("UCX ", ucp_get_version_string(), " has no CUDA, or UCX_TLS leaves it out");
}

absl::Status UcxError(std::string_view what, ucs_status_t status) {
  // A peer's handler rejects what belongs to a connection that it has ended.
  const auto code =
      status == UCS_ERR_REJECTED ? absl::StatusCode::kAborted : absl::StatusCode::kUnavailable;
  return absl::Status(code, absl::StrCat(std::string(what), ": ", ucs_status_string(status)));
}

absl::StatusOr<ucp_config_t*> MakeUcxConfig(const UcxOptions& options) {
  // Process-wide settings of the library, read when it was loaded.
  static std::once_flag once;
  std::call_once(once, [] {
    RestoreSignalHandlers();
    if (!UserSet("UCX_WARN_UNUSED_ENV_VARS")) {
      ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
    }
    // A lost peer is an error to UCX; to us it is an event, reported with its name and time.
    if (!UserSet("UCX_LOG_LEVEL")) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  });
  ucp_config_t* config = nullptr;
  if (ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return UcxError("reading the UCX configuration", status);
  }
  if (absl::Status status = ApplySettings(options, config); !status.ok()) {
    ucp_config_release(config);
    return status;
  }
  return config;
}

}  // namespace lynx
