// SPDX-License-Identifier: Apache-2.0
// Flags that change the cluster configuration. Precedence: flag > file > environment > default.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/cluster_config.h"

namespace lynx {

// Collects the flags of one subcommand. Values are applied over the file when it has been read.
class ConfigFlags {
 public:
  // which: groups of flags that this subcommand has.
  struct Groups {
    bool gateway = false;
    bool engine = false;
    bool cluster = false;  // serve: how many of each, colocated
  };
  ConfigFlags(CLI::App& command, Groups groups);

  // File (or defaults), environment, flags. Not yet checked for completeness.
  absl::StatusOr<ClusterConfig> Resolve() const;
  // --api-key, else LYNX_API_KEY, else VLLM_API_KEY, else the lines of api_key_file.
  absl::StatusOr<std::vector<std::string>> ApiKeys(const ClusterConfig& config) const;

  bool check_config = false;
  bool colocated = false;

 private:
  template <typename T>
  void Add(CLI::App& command, const char* name, const char* help,
           std::function<void(ClusterConfig&, const T&)> apply);
  template <typename Field>
  void Set(CLI::App& command, const char* name, const char* help, Field field);
  void AddGeneral(CLI::App& command);
  void AddGateway(CLI::App& command);
  void AddEngine(CLI::App& command);
  void AddKvMemory(CLI::App& command);
  void AddHandoff(CLI::App& command);
  void AddCluster(CLI::App& command);
  void AddColocated(CLI::App& command);

  std::string file_;
  std::vector<std::string> api_keys_;
  std::vector<std::function<absl::Status(ClusterConfig&)>> overrides_;
};

}  // namespace lynx
