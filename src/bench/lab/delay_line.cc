// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/delay_line.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <thread>

#include "core/clock.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr size_t kMaxPacketBytes = 65536;
constexpr size_t kMaxPackets = 20000;  // a full line loses what comes, as a router's queue does

class DelayLineThread final : public DelayLine {
 public:
  DelayLineThread(int from, int to, int stop) : from_(from), to_(to), stop_(stop) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~DelayLineThread() override {
    const uint64_t one = 1;
    (void)!write(stop_, &one, sizeof one);
    thread_.join();
    for (int fd : {from_, to_, stop_}) close(fd);
  }
  void set_delay(std::chrono::nanoseconds delay) override { delay_ns_ = delay.count(); }

 private:
  struct Packet {
    int64_t due_ns = 0;
    std::string bytes;
  };

  void Loop() {
    // It stands for a wire: it wakes to the microsecond, and before programs if that is allowed.
    prctl(PR_SET_TIMERSLACK, 1);
    (void)setpriority(PRIO_PROCESS, 0, -10);  // of this thread
    pollfd polled[] = {{.fd = from_, .events = POLLIN, .revents = 0},
                       {.fd = stop_, .events = POLLIN, .revents = 0}};
    while (true) {
      const int64_t wait_ns = packets_.empty() ? 0 : packets_.front().due_ns - MonotonicNs();
      const timespec wait{.tv_sec = std::max<int64_t>(wait_ns, 0) / kNsPerSecond,
                          .tv_nsec = std::max<int64_t>(wait_ns, 0) % kNsPerSecond};
      ppoll(polled, std::size(polled), packets_.empty() ? nullptr : &wait, nullptr);
      if (polled[1].revents != 0) return;
      if (polled[0].revents != 0 && !Take()) return;
      GiveDue();
    }
  }

  // False: the device has gone.
  bool Take() {
    char bytes[kMaxPacketBytes];
    const ssize_t size = read(from_, bytes, sizeof bytes);
    if (size < 0) return errno == EINTR || errno == EAGAIN;
    if (packets_.size() < kMaxPackets) {
      packets_.push_back({MonotonicNs() + delay_ns_, std::string(bytes, size)});
    }
    return true;
  }

  void GiveDue() {
    while (!packets_.empty() && packets_.front().due_ns <= MonotonicNs()) {
      const std::string& bytes = packets_.front().bytes;
      (void)!write(to_, bytes.data(), bytes.size());  // a device that is down loses packets
      packets_.pop_front();
    }
  }

  const int from_, to_, stop_;
  std::atomic<int64_t> delay_ns_ = 0;
  std::deque<Packet> packets_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DelayLine>> DelayLine::Create(int from, int to) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  return std::make_unique<DelayLineThread>(from, to, stop);
}

}  // namespace lynx
