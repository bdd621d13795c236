// SPDX-License-Identifier: Apache-2.0
// What we ask of UCX where the user's UCX_* environment says nothing (docs/operations.md).
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <string_view>

#include "lynx/status.h"
#include "lynx/transport.h"

namespace lynx {

// The configuration for ucp_init; the caller releases it.
absl::StatusOr<ucp_config_t*> MakeUcxConfig(const UcxOptions& options);

// Whether this program was built to give UCX device memory (LYNX_UCX_CUDA), and whether the UCX at
// hand takes it.
bool BuiltForDeviceMemory();
bool ReachesDeviceMemory(ucp_context_h context);
std::string WhyNoDeviceMemory();  // where one of them does not hold

ucs_memory_type_t UcxMemoryType(MemoryType type);

// kUnavailable that says what failed and why.
absl::Status UcxError(std::string_view what, ucs_status_t status);

}  // namespace lynx
