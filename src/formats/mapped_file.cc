// SPDX-License-Identifier: Apache-2.0
#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace lynx {
namespace {

absl::Status Error(const std::string& path, const char* reason) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", reason));
}

absl::StatusOr<std::span<const std::byte>> MapDescriptor(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Error(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return Error(path, "not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return std::span<const std::byte>();
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return Error(path, std::strerror(errno));
  return std::span(static_cast<const std::byte*>(data), size);
}

// What a clone has in the place of a large file.
bool IsLfsPointer(std::span<const std::byte> bytes) {
  constexpr std::string_view kStart = "version https://git-lfs.github.com/spec/";
  return bytes.size() >= kStart.size() &&
         std::memcmp(bytes.data(), kStart.data(), kStart.size()) == 0;
}

}  // namespace

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Error(path, std::strerror(errno));
  auto bytes = MapDescriptor(fd, path);
  close(fd);
  if (!bytes.ok()) return bytes.status();
  std::unique_ptr<MappedFile> file(new MappedFile(path, *bytes));
  if (IsLfsPointer(*bytes)) {
    return Error(path, "a Git LFS pointer, not the file itself (git lfs pull fetches it)");
  }
  return file;
}

}  // namespace lynx
