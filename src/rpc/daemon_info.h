// SPDX-License-Identifier: Apache-2.0
// The handshake: what daemons say of themselves, and whether two of them may pair.
#pragma once

#include <string>

#include "lynx.pb.h"

namespace lynx {

inline constexpr uint32_t kProtocolVersion = 4;

// "" when a decode and a prefill daemon agree on everything that the hand-off relies on; else the
// first field that differs, with both values.
std::string Disagreement(const v1::DaemonInfo& here, const v1::DaemonInfo& there);

}  // namespace lynx
