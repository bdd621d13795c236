// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/pipe.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "app/child_process.h"
#include "core/clock.h"

namespace lynx {

IncastPipe::IncastPipe(IncastPipe&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

IncastPipe::~IncastPipe() {
  if (fd_ >= 0) close(fd_);
}

absl::Status IncastPipe::Write(std::string_view message) {
  const uint64_t size = message.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += message;
  for (std::string_view left = bytes; !left.empty();) {
    const ssize_t written = send(fd_, left.data(), left.size(), MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::UnavailableError("a process of the run has ended");
    left.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> IncastPipe::Read(double timeout_s) {
  const int64_t deadline_ns = MonotonicNs() + static_cast<int64_t>(timeout_s * 1e9);
  uint64_t size = 0;
  LYNX_RETURN_IF_ERROR(ReadAll(reinterpret_cast<char*>(&size), sizeof size, deadline_ns));
  std::string message(size, '\0');
  LYNX_RETURN_IF_ERROR(ReadAll(message.data(), size, deadline_ns));
  return message;
}

absl::Status IncastPipe::ReadAll(char* to, size_t bytes, int64_t deadline_ns) {
  while (bytes > 0) {
    const int64_t left_ms = (deadline_ns - MonotonicNs()) / 1'000'000;
    if (left_ms <= 0) return absl::DeadlineExceededError("a process of the run does not answer");
    pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000))) <= 0) continue;
    const ssize_t got = read(fd_, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::UnavailableError("a process of the run has ended");
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

IncastProcess::IncastProcess(std::string name, pid_t pid, IncastPipe pipe)
    : name_(std::move(name)), pid_(pid), pipe_(std::move(pipe)) {}

IncastProcess::IncastProcess(IncastProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, 0)),
      pipe_(std::move(other.pipe_)) {}

IncastProcess::~IncastProcess() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<IncastProcess> IncastProcess::Start(
    const std::string& name, const std::function<absl::Status(IncastPipe&)>& body) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  IncastPipe ours(fds[0]), theirs(fds[1]);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid > 0) return IncastProcess(name, pid, std::move(ours));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const absl::Status status = body(theirs);
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", name.c_str(), status.ToString().c_str());
  _exit(status.ok() ? 0 : 1);
}

absl::StatusOr<std::string> IncastProcess::Read(double timeout_s) {
  absl::StatusOr<std::string> message = pipe_.Read(timeout_s);
  if (!absl::IsUnavailable(message.status())) return message;
  const absl::Status end = Join();
  return end.ok() ? message.status() : end;
}

absl::Status IncastProcess::Join() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name_, " ", DescribeExit(status)));
}

}  // namespace lynx
