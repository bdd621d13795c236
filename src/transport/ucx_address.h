// SPDX-License-Identifier: Apache-2.0
// What a UcxTransport's address() says: who it is and how each of its two workers is reached.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "lynx/status.h"

namespace lynx {

struct UcxAddress {
  uint64_t epoch = 0;
  std::string control;  // worker addresses
  std::string bulk;
  std::set<uint16_t> control_ports;  // TCP ports its workers listen on, if any
  std::set<uint16_t> bulk_ports;

  std::string Pack() const;
  // kInvalidArgument: not an address; kFailedPrecondition: of another version. Safe for any bytes,
  // but the worker addresses inside are UCX's to judge.
  static absl::StatusOr<UcxAddress> Parse(std::string_view bytes);
};

}  // namespace lynx
