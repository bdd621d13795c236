// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lynx/status.h"

namespace lynx {

// A new directory among the temporary files ($TMPDIR) that disappears with this object.
class RunDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Create();
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace lynx
