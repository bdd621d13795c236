// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <array>
#include <string_view>

#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace lynx {

absl::Status InitLog(const std::string& daemon_name, const std::string& level) {
  static constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn",
                                                              "error"};
  bool known = false;
  for (std::string_view l : kLevels) known |= l == level;
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("log level: '", level, "' is not one of trace, debug, info, warn, error"));
  }
  auto logger = spdlog::stderr_color_mt(daemon_name);
  spdlog::set_default_logger(logger);
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ [%n] %v", spdlog::pattern_time_type::utc);
  spdlog::set_level(spdlog::level::from_str(level));
  spdlog::flush_on(spdlog::level::info);
  return absl::OkStatus();
}

}  // namespace lynx
