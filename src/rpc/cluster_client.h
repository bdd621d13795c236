// SPDX-License-Identifier: Apache-2.0
// The gateway's side of Generate: a Generator over the cluster's decode daemons.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lynx/generator.h"

namespace lynx {

struct ClusterClientOptions {
  std::vector<std::string> decode_addresses;
  std::vector<std::string> prefill_addresses;  // watched for readiness and metrics only
  int max_retries = 1;                         // other daemons tried when one is lost
};

class ClusterClient : public Generator {
 public:
  static std::unique_ptr<ClusterClient> Create(const ClusterClientOptions& options);
};

}  // namespace lynx
