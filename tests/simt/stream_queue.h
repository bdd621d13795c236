// SPDX-License-Identifier: Apache-2.0
// The streams of all emulated devices: what is queued, and what of it runs when.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "simt/streams.h"

namespace lynx::simt {

struct StreamState;

// Everything in a stream up to one of its operations.
struct StreamMark {
  std::shared_ptr<StreamState> stream;
  uint64_t position = 0;
};

struct QueuedOperation {
  std::vector<StreamMark> after;  // beside what stands before it in its stream
  std::function<bool()> run;      // false: look again when another stream has moved
  size_t trace_index = 0;         // in the record, + 1; 0: not recorded
};

struct StreamState {
  int id = 0;
  int device = 0;
  bool is_default = false;
  bool blocking = false;  // it and the default stream wait for each other
  bool destroyed = false;
  bool moving = false;  // an operation of it runs, or waits for one that does
  std::deque<QueuedOperation> queue;
  uint64_t num_queued = 0, num_done = 0;

  bool passed(uint64_t position) const { return num_done >= position; }
};

// Thread safe. One operation runs at a time, on a thread that waits.
class StreamQueue {
 public:
  std::shared_ptr<StreamState> Create(int device, bool blocking);
  void Destroy(const std::shared_ptr<StreamState>& stream);
  std::shared_ptr<StreamState> Default(int device);

  // Throws what a deferred operation has left to report.
  StreamMark Queue(const std::shared_ptr<StreamState>& stream, StreamOperation description,
                   std::function<bool()> run, std::vector<StreamMark> after = {});
  // These run operations; a fault leaves through them and drops everything that is queued.
  void Wait(const StreamMark& mark);
  void WaitForStream(const std::shared_ptr<StreamState>& stream);
  void WaitForDevice(int device);
  // Runs one operation that the mark needs. True once it is passed.
  bool Query(const StreamMark& mark);
  bool QueryStream(const std::shared_ptr<StreamState>& stream);
  // For calls of destructors: a fault is kept for the next call that may throw.
  void WaitForDeviceWithoutFault(int device);

  void Change(const std::function<void()>& change);
  void set_order(StreamOrder order);
  void StartTrace();
  std::vector<StreamOperation> StopTrace();

 private:
  using Lock = std::unique_lock<std::mutex>;

  Lock Enter();
  std::shared_ptr<StreamState> CreateLocked(int device, bool blocking);
  std::shared_ptr<StreamState> DefaultLocked(int device);
  void AddLegacyWaits(const StreamState& stream, std::vector<StreamMark>& after);
  void WaitLocked(Lock& lock, const StreamMark& mark);
  void RunOthers(StreamState& stream);
  bool Advance(StreamState& stream, uint64_t position);
  bool Step(StreamState& stream, uint64_t position);
  bool RunHead(StreamState& stream);
  bool Attempt(StreamState& stream);
  void DropEverything();
  void ForgetEnded();
  void ThrowKeptFault();

  std::mutex mutex_;
  std::condition_variable changed_;  // something was queued or has run
  StreamOrder order_ = StreamOrder::kNeeded;
  int next_id_ = 0;
  std::vector<std::shared_ptr<StreamState>> streams_;  // all that are used or have operations
  std::string kept_fault_;
  uint64_t now_ = 0;
  bool tracing_ = false;
  std::vector<StreamOperation> trace_;
};

StreamQueue& Streams();

}  // namespace lynx::simt
