// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/daemons.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/clock.h"
#include "handoff/kv_receiver.h"
#include "handoff/kv_sender.h"

namespace lynx {
namespace {

constexpr double kPatienceSeconds = 60;
constexpr int64_t kProbeIntervalNs = 10'000'000;
constexpr int64_t kBeginAheadNs = 20'000'000;  // the decode side begins before the prefill is over

// Sleeps until notified or until a time.
class Alarm {
 public:
  void Notify() {
    std::lock_guard lock(mu_);
    rung_ = true;
    changed_.notify_one();
  }
  void WaitUntil(int64_t time_ns) {
    std::unique_lock lock(mu_);
    const int64_t left_ns = std::max<int64_t>(0, time_ns - MonotonicNs());
    changed_.wait_for(lock, std::chrono::nanoseconds(left_ns), [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool rung_ = false;
};

// Requests of the plan come first, then one warm-up of each sender.
AttemptId IdOf(size_t index) { return {0x696e63617374, index + 1}; }

int WarmUpTokens(const IncastKv& kv) { return kv.sizes.begin()->first; }

absl::StatusOr<std::unique_ptr<IncastTransport>> MakeTransport(const IncastRun& run) {
  LYNX_ASSIGN_OR_RETURN(auto ucx, MakeUcxTransport({}));
  return std::make_unique<IncastTransport>(std::move(ucx), run.policy, run.stream_window_bytes);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

absl::StatusOr<int64_t> ReadStart(IncastPipe& pipe) {
  LYNX_ASSIGN_OR_RETURN(const std::string message, pipe.Read(kPatienceSeconds));
  int64_t start_ns = 0;
  std::memcpy(&start_ns, message.data(), std::min(message.size(), sizeof start_ns));
  return start_ns;
}

template <typename T>
void Append(std::string& bytes, const T* values, size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <typename T>
void Take(std::string_view& bytes, T* values, size_t count) {
  const size_t size = std::min(bytes.size(), count * sizeof(T));
  std::memcpy(values, bytes.data(), size);
  bytes.remove_prefix(size);
}

class Receiver {
 public:
  Receiver(const IncastKv& kv, const IncastRun& run) : kv_(kv), run_(run) {}

  absl::Status Open() {
    LYNX_ASSIGN_OR_RETURN(transport_, MakeTransport(run_));
    const KvPoolView& theirs = kv_.cache->view();
    LYNX_ASSIGN_OR_RETURN(cache_, KvCache::Create(*kv_.backend, theirs.layout, theirs.num_blocks));
    KvReceiver::Options options;
    if (run_.policy != IncastPolicy::kLynx) {  // the transport decides
      options.window_bytes = SIZE_MAX / 2;
      options.adapt_window = false;
    }
    receiver_ = KvReceiver::Create(options, *kv_.codec, kv_.plan, cache_->view(), *transport_,
                                   [this] { alarm_.Notify(); });
    return absl::OkStatus();
  }
  std::string address() const { return transport_->address(); }

  absl::Status WarmUp() {
    for (int s = 0; s < run_.num_senders; ++s) {
      LYNX_RETURN_IF_ERROR(Begin(run_.requests.size() + s, WarmUpTokens(kv_)));
    }
    return WaitUntilEnded(run_.num_senders, INT64_MAX);
  }

  absl::StatusOr<ReceiverReport> Play(int64_t start_ns) {
    report_.requests.resize(run_.requests.size());
    for (size_t i = 0; i < run_.requests.size(); ++i) {
      const auto arrival_ns =
          start_ns + static_cast<int64_t>(run_.requests[i].arrival_s * 1e9) - kBeginAheadNs;
      LYNX_RETURN_IF_ERROR(WaitUntilEnded(INT_MAX, arrival_ns));
      LYNX_RETURN_IF_ERROR(Begin(i, run_.requests[i].num_tokens));
    }
    const int total = static_cast<int>(run_.requests.size()) + run_.num_senders;
    LYNX_RETURN_IF_ERROR(WaitUntilEnded(total, INT64_MAX));
    report_.equal = EqualCaches();
    report_.cpu_s = CpuSeconds();
    return report_;
  }

 private:
  absl::Status Begin(size_t index, int num_tokens) {
    return receiver_->Begin({IdOf(index), 0, num_tokens, FirstBlocks(num_tokens)});
  }

  // Handles events until so many attempts have ended or until the time.
  absl::Status WaitUntilEnded(int num_ended, int64_t until_ns) {
    const bool forever = until_ns == INT64_MAX;
    int64_t patience_ns = MonotonicNs() + static_cast<int64_t>(kPatienceSeconds * 1e9);
    while (num_ended_ < num_ended && (forever || MonotonicNs() < until_ns)) {
      alarm_.WaitUntil(std::min(until_ns, patience_ns));
      for (const ReceiveEvent& event : receiver_->Poll()) {
        LYNX_RETURN_IF_ERROR(OnEvent(event));
        patience_ns = MonotonicNs() + static_cast<int64_t>(kPatienceSeconds * 1e9);
      }
      if (forever && MonotonicNs() >= patience_ns) {
        return absl::DeadlineExceededError("nothing arrives any more");
      }
    }
    return absl::OkStatus();
  }

  absl::Status OnEvent(const ReceiveEvent& event) {
    using Kind = ReceiveEvent::Kind;
    const size_t index = event.attempt.lo - 1;
    ReceivedRequest unused;
    ReceivedRequest& request = index < report_.requests.size() ? report_.requests[index] : unused;
    switch (event.kind) {
      case Kind::kAnchorLanded:
        request.landed_ns[0] = event.at_ns;
        break;
      case Kind::kResidualLanded:
        request.landed_ns[1] = event.at_ns;
        break;
      case Kind::kTargetLanded:
        request.landed_ns[kNumPullClasses - 1] = event.at_ns;
        break;
      case Kind::kReadable:
        break;
      case Kind::kRefined:
        request.refined_ns = event.at_ns;
        ++num_ended_;
        break;
      case Kind::kFailed:
      case Kind::kCancelled:
        return event.error;
    }
    return absl::OkStatus();
  }

  // Every request wrote the same tokens, and each ended exact.
  bool EqualCaches() const {
    const KvPoolView& theirs = kv_.cache->view();
    return std::memcmp(cache_->view().base, theirs.base,
                       theirs.num_blocks * theirs.layout.block_bytes()) == 0;
  }

  const IncastKv& kv_;
  const IncastRun& run_;
  Alarm alarm_;
  std::unique_ptr<IncastTransport> transport_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvReceiver> receiver_;
  int num_ended_ = 0;
  ReceiverReport report_;
};

class Sender {
 public:
  Sender(const IncastKv& kv, const IncastRun& run, int index, const std::string& receiver)
      : kv_(kv), run_(run), index_(index), receiver_(receiver) {}

  absl::Status Open() {
    LYNX_ASSIGN_OR_RETURN(transport_, MakeTransport(run_));
    KvSender::Options options;
    if (run_.policy != IncastPolicy::kLynx) options.max_posted_chunks = INT_MAX;
    sender_ = KvSender::Create(options, *kv_.codec, kv_.plan, kv_.cache->view(), *transport_,
                               [this] { alarm_.Notify(); });
    return absl::OkStatus();
  }

  absl::Status WarmUp() {
    LYNX_ASSIGN_OR_RETURN(peer_, transport_->Connect(receiver_));
    LYNX_RETURN_IF_ERROR(Send(run_.requests.size() + index_, WarmUpTokens(kv_)));
    const int64_t deadline_ns = MonotonicNs() + static_cast<int64_t>(kPatienceSeconds * 1e9);
    while (num_delivered_ == 0) {
      if (MonotonicNs() > deadline_ns) return absl::DeadlineExceededError("warm-up");
      LYNX_RETURN_IF_ERROR(Poll(deadline_ns));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SenderReport> Play(int64_t start_ns) {
    int64_t next_probe_ns = start_ns;
    for (size_t i = 0; i < run_.requests.size(); ++i) {
      if (run_.requests[i].sender != index_) continue;
      const auto arrival_ns = start_ns + static_cast<int64_t>(run_.requests[i].arrival_s * 1e9);
      LYNX_RETURN_IF_ERROR(
          ProbeUntil([&] { return MonotonicNs() >= arrival_ns; }, arrival_ns, next_probe_ns));
      LYNX_RETURN_IF_ERROR(Send(i, run_.requests[i].num_tokens));
    }
    LYNX_RETURN_IF_ERROR(
        ProbeUntil([&] { return num_delivered_ == num_sent_; }, INT64_MAX, next_probe_ns));
    return SenderReport{transport_->probes(), CpuSeconds()};
  }

 private:
  absl::Status Send(size_t index, int num_tokens) {
    ++num_sent_;
    LYNX_RETURN_IF_ERROR(
        sender_->Begin({IdOf(index), receiver_, 0, num_tokens, FirstBlocks(num_tokens)}));
    for (int layer = 0; layer < kv_.cache->view().layout.num_layers; ++layer) {
      sender_->Computed(IdOf(index), layer, num_tokens);
    }
    return absl::OkStatus();
  }

  absl::Status Poll(int64_t until_ns) {
    alarm_.WaitUntil(until_ns);
    for (const SendEvent& event : sender_->Poll()) {
      if (event.kind == SendEvent::Kind::kFailed) return event.error;
      ++num_delivered_;
    }
    return absl::OkStatus();
  }

  template <typename Condition>
  absl::Status ProbeUntil(const Condition& over, int64_t until_ns, int64_t& next_probe_ns) {
    while (!over()) {
      LYNX_RETURN_IF_ERROR(Poll(std::min(until_ns, next_probe_ns)));
      if (MonotonicNs() < next_probe_ns) continue;
      transport_->Probe(peer_);
      next_probe_ns = MonotonicNs() + kProbeIntervalNs;
    }
    return absl::OkStatus();
  }

  const IncastKv& kv_;
  const IncastRun& run_;
  const int index_;
  const std::string receiver_;
  Alarm alarm_;
  std::unique_ptr<IncastTransport> transport_;
  std::unique_ptr<KvSender> sender_;
  PeerId peer_ = 0;
  int num_sent_ = 0;
  int num_delivered_ = 0;
};

}  // namespace

absl::Status RunIncastReceiver(const IncastKv& kv, const IncastRun& run, IncastPipe& pipe) {
  Receiver receiver(kv, run);
  LYNX_RETURN_IF_ERROR(receiver.Open());
  LYNX_RETURN_IF_ERROR(pipe.Write(receiver.address()));
  LYNX_RETURN_IF_ERROR(receiver.WarmUp());
  LYNX_RETURN_IF_ERROR(pipe.Write("warm"));
  LYNX_ASSIGN_OR_RETURN(const int64_t start_ns, ReadStart(pipe));
  LYNX_ASSIGN_OR_RETURN(const ReceiverReport report, receiver.Play(start_ns));
  std::string bytes;
  Append(bytes, &report.equal, 1);
  Append(bytes, &report.cpu_s, 1);
  Append(bytes, report.requests.data(), report.requests.size());
  LYNX_RETURN_IF_ERROR(pipe.Write(bytes));
  return pipe.Read(kPatienceSeconds).status();  // the senders have ended
}

absl::Status RunIncastSender(const IncastKv& kv, const IncastRun& run, int index,
                             const std::string& receiver_address, IncastPipe& pipe) {
  Sender sender(kv, run, index, receiver_address);
  LYNX_RETURN_IF_ERROR(sender.Open());
  LYNX_RETURN_IF_ERROR(sender.WarmUp());
  LYNX_RETURN_IF_ERROR(pipe.Write("warm"));
  LYNX_ASSIGN_OR_RETURN(const int64_t start_ns, ReadStart(pipe));
  LYNX_ASSIGN_OR_RETURN(const SenderReport report, sender.Play(start_ns));
  std::string bytes;
  Append(bytes, &report.cpu_s, 1);
  Append(bytes, report.probes.data(), report.probes.size());
  return pipe.Write(bytes);
}

ReceiverReport ParseReceiverReport(std::string_view bytes, size_t num_requests) {
  ReceiverReport report;
  report.requests.resize(num_requests);
  Take(bytes, &report.equal, 1);
  Take(bytes, &report.cpu_s, 1);
  Take(bytes, report.requests.data(), num_requests);
  return report;
}

SenderReport ParseSenderReport(std::string_view bytes) {
  SenderReport report;
  Take(bytes, &report.cpu_s, 1);
  report.probes.resize(bytes.size() / sizeof(ControlProbe));
  Take(bytes, report.probes.data(), report.probes.size());
  return report;
}

}  // namespace lynx
