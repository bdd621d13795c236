// SPDX-License-Identifier: Apache-2.0
// cuda_runtime.h: streams and events.
#include "tests/simt/stream_calls.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>

#include "tests/simt/devices.h"

namespace simt = lynx::simt;

using Clock = std::chrono::steady_clock;

struct CUstream_st {
  std::shared_ptr<simt::StreamState> state;
};

struct CUevent_st {
  const int device = simt::CurrentDevice();
  std::mutex mutex;
  std::optional<simt::StreamMark> mark;                  // of the last record; none: not recorded
  std::shared_ptr<std::atomic<Clock::time_point>> when;  // it ran

  std::optional<simt::StreamMark> last() {
    std::lock_guard lock(mutex);
    return mark;
  }
};

namespace lynx::simt {
namespace {

void RequireDevice(int device, const StreamState& stream, const std::string& call) {
  if (device == stream.device) return;
  throw Fault(call + ": device " + std::to_string(device) + ", but the stream is device " +
              std::to_string(stream.device) + "'s");
}

}  // namespace

std::shared_ptr<StreamState> StateOf(cudaStream_t stream) {
  return stream != nullptr ? stream->state : Streams().Default(CurrentDevice());
}

int StreamId(cudaStream_t stream) { return StateOf(stream)->id; }

void Enqueue(cudaStream_t stream, StreamOperation description, std::function<void()> run) {
  EnqueueMeeting(stream, std::move(description), [run = std::move(run)] {
    run();
    return true;
  });
}

void EnqueueMeeting(cudaStream_t stream, StreamOperation description, std::function<bool()> run) {
  const auto state = StateOf(stream);
  RequireDevice(CurrentDevice(), *state, description.name);
  Streams().Queue(state, std::move(description), std::move(run));
}

}  // namespace lynx::simt

// ---- streams ------------------------------------------------------------------------------------
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  const bool blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = new CUstream_st{simt::Streams().Create(simt::CurrentDevice(), blocking)};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  simt::Streams().Destroy(stream->state);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  simt::Streams().WaitForStream(simt::StateOf(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return simt::Streams().QueryStream(simt::StateOf(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto mark = event->last();
  if (!mark) return cudaSuccess;
  simt::Streams().Queue(simt::StateOf(stream),
                        {.kind = simt::OperationKind::kWait,
                         .name = "cudaStreamWaitEvent",
                         .waits_for = mark->stream->id},
                        [] { return true; }, {*mark});
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  simt::Enqueue(stream, {.kind = simt::OperationKind::kHostFunction, .name = "cudaLaunchHostFunc"},
                [=] {
                  function(argument);
                  simt::NoteHostFunction();
                });
  return cudaSuccess;
}

// ---- events -------------------------------------------------------------------------------------
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto state = simt::StateOf(stream);
  simt::RequireDevice(event->device, *state, "cudaEventRecord");
  auto when = std::make_shared<std::atomic<Clock::time_point>>();
  std::lock_guard lock(event->mutex);
  event->mark = simt::Streams().Queue(
      state, {.kind = simt::OperationKind::kRecord, .name = "cudaEventRecord"}, [when] {
        *when = Clock::now();
        return true;
      });
  event->when = std::move(when);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto mark = event->last()) simt::Streams().Wait(*mark);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto mark = event->last();
  return !mark || simt::Streams().Query(*mark) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (start->when == nullptr || end->when == nullptr) return cudaErrorInvalidValue;
  const Clock::time_point from = *start->when, to = *end->when;
  if (from == Clock::time_point() || to == Clock::time_point()) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(to - from).count();
  return cudaSuccess;
}
