// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace lynx {

// A new directory, removed with everything in it.
class TempDirectory {
 public:
  TempDirectory() {
    static int num_made = 0;
    path_ = std::filesystem::temp_directory_path() /
            absl::StrCat("lynx_test_", getpid(), "_", num_made++);
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  std::string path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // Returns the path of the file.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace lynx
