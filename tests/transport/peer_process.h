// SPDX-License-Identifier: Apache-2.0
// A second process with a UCX transport: this test program itself, started again with a filter
// for the one test that serves. It obeys control messages: "post N BYTES" posts to whoever asked.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/escaping.h"
#include "lynx/status.h"

namespace lynx {

class PeerProcess {
 public:
  PeerProcess() {
    int pipe_fds[2];
    LYNX_CHECK(pipe(pipe_fds) == 0);
    pid_ = fork();
    LYNX_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(pipe_fds[1], kAddressFd);
      execl("/proc/self/exe", "peer", "--gtest_also_run_disabled_tests",
            "--gtest_filter=*DISABLED_ServePeer", "--gtest_brief=1", nullptr);
      _exit(127);
    }
    close(pipe_fds[1]);
    std::string hex;
    char c;
    while (read(pipe_fds[0], &c, 1) == 1 && c != '\n') hex += c;
    close(pipe_fds[0]);
    address_ = absl::HexStringToBytes(hex);
  }
  ~PeerProcess() { Kill(); }

  const std::string& address() const { return address_; }
  void Stop() {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);  // until every thread has stopped
  }
  void Continue() { kill(pid_, SIGCONT); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  static constexpr int kAddressFd = 3;
  // In the child.
  static void TellAddress(const std::string& address) {
    const std::string line = absl::BytesToHexString(address) + "\n";
    LYNX_CHECK(write(kAddressFd, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    close(kAddressFd);
  }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

}  // namespace lynx
