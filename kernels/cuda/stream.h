// SPDX-License-Identifier: Apache-2.0
// Streams and events with owners.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace lynx::cuda {

class Stream {
 public:
  enum class Priority { kNormal, kHigh };
  explicit Stream(Priority priority = Priority::kNormal) {
    int least = 0, greatest = 0;
    AbortOnError(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
    AbortOnError(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                              priority == Priority::kHigh ? greatest : least),
                 "cudaStreamCreate");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void WaitFor(cudaEvent_t event) const {
    AbortOnError(cudaStreamWaitEvent(stream_, event, 0), "cudaStreamWaitEvent");
  }
  void Synchronize() const { AbortOnError(cudaStreamSynchronize(stream_), "a queued operation"); }
  void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const {
    if (bytes > 0) AbortOnError(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// A host thread that waits for one sleeps.
class Event {
 public:
  Event() {
    AbortOnError(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
                 "cudaEventCreate");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  void Record(const Stream& stream) const {
    AbortOnError(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
  }
  void Synchronize() const { AbortOnError(cudaEventSynchronize(event_), "a queued operation"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace lynx::cuda
