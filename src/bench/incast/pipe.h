// SPDX-License-Identifier: Apache-2.0
// Messages between `lynx bench incast` and the processes that it forks.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "lynx/status.h"

namespace lynx {

// One end of a pair of sockets; closes it.
class IncastPipe {
 public:
  explicit IncastPipe(int fd) : fd_(fd) {}
  IncastPipe(IncastPipe&& other) noexcept;
  IncastPipe& operator=(IncastPipe&&) = delete;
  ~IncastPipe();

  // kUnavailable when the other side has gone.
  absl::Status Write(std::string_view message);
  // The other side's next message; kDeadlineExceeded after so many seconds.
  absl::StatusOr<std::string> Read(double timeout_s);

 private:
  absl::Status ReadAll(char* to, size_t bytes, int64_t deadline_ns);
  int fd_;
};

// A forked process that runs `body` and ends, with its error on stderr. The destructor kills it.
// Of the parent's threads only the calling one goes on in it.
class IncastProcess {
 public:
  static absl::StatusOr<IncastProcess> Start(const std::string& name,
                                             const std::function<absl::Status(IncastPipe&)>& body);
  IncastProcess(IncastProcess&& other) noexcept;
  IncastProcess& operator=(IncastProcess&&) = delete;
  ~IncastProcess();

  absl::Status Write(std::string_view message) { return pipe_.Write(message); }
  // Its next message; says how it ended when it has.
  absl::StatusOr<std::string> Read(double timeout_s);
  // Waits for its end.
  absl::Status Join();

 private:
  IncastProcess(std::string name, pid_t pid, IncastPipe pipe);
  std::string name_;
  pid_t pid_;
  IncastPipe pipe_;
};

}  // namespace lynx
