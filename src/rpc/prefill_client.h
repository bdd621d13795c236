// SPDX-License-Identifier: Apache-2.0
// The decode daemon's side of Prefill: picks a prefill daemon that agrees with the handshake, has
// not failed the request and has the fewest open attempts, and keeps one call per attempt.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/remote_prefill.h"
#include "lynx.pb.h"

namespace lynx {

class PrefillClient : public RemotePrefill {
 public:
  // here: what this decode daemon says of itself (its model and format fields are compared).
  static std::unique_ptr<PrefillClient> Create(std::vector<std::string> addresses,
                                               v1::DaemonInfo here);
  // Why no prefill daemon is usable, or "".
  virtual std::string unavailable_reason() const = 0;
};

}  // namespace lynx
