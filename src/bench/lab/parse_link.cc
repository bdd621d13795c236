// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/parse_link.h"

#include <charconv>
#include <initializer_list>
#include <optional>
#include <utility>

namespace lynx {
namespace {

using Units = std::initializer_list<std::pair<const char*, double>>;

// A number and a unit; nothing when it is not.
std::optional<double> ParseQuantity(const std::string& text, Units units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0 && number < 1e15)) return std::nullopt;
  const std::string unit(end, text.data() + text.size());
  for (const auto& [name, factor] : units) {
    if (unit == name) return number * factor;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<double> ParseBitRate(const std::string& text) {
  const auto rate = ParseQuantity(text, {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}});
  if (rate && *rate >= 1e5 && *rate <= 1e11) return *rate;
  return absl::InvalidArgumentError(
      absl::StrCat("--link: '", text, "' is neither none nor a rate such as 200mbit or 2.5gbit"));
}

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  const auto seconds =
      ParseQuantity(text, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"", text == "0" ? 1 : 1e18}});
  if (seconds && *seconds <= 1) return *seconds;
  return absl::InvalidArgumentError(
      absl::StrCat("--rtt: '", text, "' is not a time up to 1s, such as 0.2ms"));
}

}  // namespace lynx
