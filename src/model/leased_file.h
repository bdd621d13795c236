// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "lynx/status.h"

namespace lynx {

// The bytes of a regular file, which stay what they were when it was opened, whatever others then
// do to it: a mapping under a read lease (fcntl(2), F_SETLEASE). Who wants to truncate or write the
// file waits until its bytes lie in memory of this process, in the mapping's place. Deleting it or
// giving its name to another needs no lease: the mapping keeps the inode. A file that cannot be
// leased (another user's; one on some network file systems) is read instead.
class LeasedFile {
 public:
  // kNotFound: there is no such file. kUnavailable: it cannot be opened or read.
  static absl::StatusOr<std::unique_ptr<LeasedFile>> Open(const std::string& path);
  ~LeasedFile();
  LeasedFile(const LeasedFile&) = delete;
  LeasedFile& operator=(const LeasedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Mapped when it was opened: then its pages are shared by every process that maps the file.
  bool was_mapped() const { return was_mapped_; }

 private:
  explicit LeasedFile(int fd) : fd_(fd) {}

  absl::Status Load();
  bool Lease();
  void WatchLease(const std::stop_token& stop);
  bool CopyInPlace();

  const int fd_;
  std::mutex loading_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool was_mapped_ = false;
  std::jthread watcher_;  // holds the lease
};

}  // namespace lynx
