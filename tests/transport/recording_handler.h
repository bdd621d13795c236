// SPDX-License-Identifier: Apache-2.0
// A handler that writes down what it is told, and waits for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "lynx/transport.h"

namespace lynx {

inline std::vector<std::byte> Bytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
inline std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Any thread may Notify; one waits. Long limits: they end a test that has failed.
class Signal {
 public:
  void Notify() {
    std::lock_guard lock(mu_);
    wake_.notify_all();
  }
  // `condition` is evaluated under the lock that Update takes.
  bool WaitFor(const std::function<bool()>& condition,
               std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    std::unique_lock lock(mu_);
    return wake_.wait_for(lock, limit, condition);
  }
  void Update(const std::function<void()>& change) {
    std::lock_guard lock(mu_);
    change();
    wake_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable wake_;
};

class RecordingHandler : public TransportHandler {
 public:
  struct Offer {
    OfferId id;
    uint64_t from;
    std::string header;
    size_t payload_bytes;
  };
  struct Loss {
    PeerId peer;
    uint64_t epoch;
    absl::Status why;
    std::chrono::steady_clock::time_point when;
  };

  void OnControl(uint64_t from, std::span<const std::byte> message) override {
    signal.Update([&] { control.emplace_back(from, Text(message)); });
  }
  void OnOffer(OfferId id, uint64_t from, std::span<const std::byte> header,
               size_t payload_bytes) override {
    signal.Update([&] { offers.push_back({id, from, Text(header), payload_bytes}); });
  }
  void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) override {
    signal.Update([&] { losses.push_back({peer, epoch, why, std::chrono::steady_clock::now()}); });
  }

  size_t num_offers() {
    size_t count = 0;
    signal.Update([&] { count = offers.size(); });
    return count;
  }

  // Read inside WaitFor's condition, or when nothing can arrive any more.
  Signal signal;
  std::vector<std::pair<uint64_t, std::string>> control;
  std::vector<Offer> offers;
  std::vector<Loss> losses;
};

// The result of one Post or Pull.
class Outcome {
 public:
  std::function<void(absl::Status)> Callback() {
    return [this](absl::Status status) {
      signal_.Update([&] {
        status_ = std::move(status);
        ++num_calls_;
      });
    };
  }
  bool Wait() {
    return signal_.WaitFor([&] { return num_calls_ > 0; });
  }
  bool done_within(std::chrono::milliseconds limit) {
    return signal_.WaitFor([&] { return num_calls_ > 0; }, limit);
  }
  const absl::Status& status() const { return status_; }  // after Wait
  int num_calls() {
    int num_calls = 0;
    signal_.Update([&] { num_calls = num_calls_; });
    return num_calls;
  }

 private:
  Signal signal_;
  absl::Status status_;
  int num_calls_ = 0;
};

}  // namespace lynx
