// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lynx/status.h"

namespace lynx {

// A regular file mapped read-only. Pages are read when they are touched.
class MappedFile {
 public:
  // kInvalidArgument "PATH: reason" when it cannot be opened, is not a regular file or only says
  // where Git LFS keeps the file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }  // valid while this object lives

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace lynx
