// SPDX-License-Identifier: Apache-2.0
#include "model/leased_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

namespace lynx {
namespace {

// Null when there is not so much memory.
std::byte* TakeMemory(size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

bool ReadAll(int fd, std::span<std::byte> to) {
  for (size_t done = 0; done < to.size();) {
    const ssize_t n = pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LeasedFile>> LeasedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string message = absl::StrCat(path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  std::unique_ptr<LeasedFile> file(new LeasedFile(fd));
  if (const absl::Status status = file->Load(); !status.ok()) {
    return absl::UnavailableError(absl::StrCat(path, ": ", status.message()));
  }
  return file;
}

LeasedFile::~LeasedFile() {
  if (watcher_.joinable()) {
    watcher_.request_stop();
    pthread_kill(watcher_.native_handle(), SIGIO);
    watcher_.join();
  }
  if (data_ != nullptr) munmap(data_, size_);
  close(fd_);
}

absl::Status LeasedFile::Load() {
  std::lock_guard lock(loading_);
  const bool leased = Lease();
  struct stat info;
  if (fstat(fd_, &info) != 0) return absl::UnavailableError(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return absl::UnavailableError("not a regular file");
  if (info.st_size == 0) return absl::OkStatus();
  const auto size = static_cast<size_t>(info.st_size);
  if (leased) {
    void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_, 0);
    if (data == MAP_FAILED) return absl::UnavailableError(std::strerror(errno));
    data_ = static_cast<std::byte*>(data);
    size_ = size;
    was_mapped_ = true;
    return absl::OkStatus();
  }
  data_ = TakeMemory(size);
  if (data_ == nullptr) return absl::UnavailableError("there is not enough memory");
  size_ = size;
  if (!ReadAll(fd_, {data_, size_})) return absl::UnavailableError("cannot be read");
  return absl::OkStatus();
}

// Starts the thread that the kernel tells when somebody wants the file, if there can be a lease.
bool LeasedFile::Lease() {
  std::promise<bool> result;
  std::future<bool> leased = result.get_future();
  sigset_t all, saved;
  sigfillset(&all);  // signals belong to the program's own threads
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  watcher_ = std::jthread([result = std::move(result), this](std::stop_token stop) mutable {
    const f_owner_ex owner{.type = F_OWNER_TID, .pid = gettid()};
    const bool ok = fcntl(fd_, F_SETOWN_EX, &owner) == 0 && fcntl(fd_, F_SETLEASE, F_RDLCK) == 0;
    result.set_value(ok);
    if (ok) WatchLease(stop);
  });
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  return leased.get();
}

void LeasedFile::WatchLease(const std::stop_token& stop) {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGIO);
  int signal = 0;
  while (sigwait(&wanted, &signal) != 0) {
  }
  if (stop.stop_requested()) return;
  std::lock_guard lock(loading_);
  if (data_ != nullptr && !CopyInPlace()) {
    spdlog::error("weight cache: a file in use is about to change and there is no memory for it");
    return;  // whoever wants the file waits for as long as the kernel makes it (lease-break-time)
  }
  fcntl(fd_, F_SETLEASE, F_UNLCK);
}

// Readers see one and the same bytes all the while.
bool LeasedFile::CopyInPlace() {
  std::byte* copy = TakeMemory(size_);
  if (copy == nullptr) return false;
  std::copy_n(data_, size_, copy);
  if (mremap(copy, size_, size_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) != MAP_FAILED) return true;
  munmap(copy, size_);
  return false;
}

}  // namespace lynx
