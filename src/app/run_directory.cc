// SPDX-License-Identifier: Apache-2.0
#include "app/run_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace lynx {

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Create() {
  std::error_code error;  // $TMPDIR may name nothing
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path = (parent / "lynx-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no run directory can be made in the directory for temporary files (TMPDIR): ",
                     error ? error.message() : path + ": " + std::strerror(errno)));
  }
  return std::unique_ptr<RunDirectory>(new RunDirectory(path));
}

RunDirectory::~RunDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lynx
