// SPDX-License-Identifier: Apache-2.0
// cuda_runtime.h: copies and sets. When the host may go on, and when a source is read, is as CUDA's
// "API synchronization behavior" has it, at the latest that it allows.
#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "tests/simt/device_memory.h"
#include "tests/simt/stream_calls.h"

namespace simt = lynx::simt;

namespace lynx::simt {
namespace {

std::atomic<uint64_t> num_host_functions{0};

enum class Place : uint8_t { kPageable, kPinned, kDevice };

Place PlaceOf(const HostRange& range) {
  if (range.shadow != nullptr) return Place::kDevice;
  return range.allocation != nullptr ? Place::kPinned : Place::kPageable;
}

bool Matches(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaMemcpyKind KindOf(Place to, Place from) {
  if (to == Place::kDevice) {
    return from == Place::kDevice ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
  }
  return from == Place::kDevice ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

// What a pinned source holds, and how often something other than the host has written to it.
struct Contents {
  size_t hash = 0;
  uint64_t num_writes = 0;

  static uint64_t NumWrites(const HostRange& range) {
    return range.allocation->num_device_writes + num_host_functions;
  }
  static Contents Of(const HostRange& range, size_t bytes) {
    const uint64_t num_writes = NumWrites(range);
    const auto* text = reinterpret_cast<const char*>(range.bytes);
    return {std::hash<std::string_view>()({text, bytes}), num_writes};
  }
};

struct Copy {
  const char* call;
  void* to;
  const void* from;
  size_t bytes;
  Place to_place, from_place;
  const Allocation* to_allocation;  // null: pageable
  const Allocation* from_allocation;
  std::vector<std::byte> staged;  // of a pageable source
  Contents pinned_source;

  void Run() const;

 private:
  HostRange Reach(const void* pointer, const Allocation* allocation) const {
    if (allocation != nullptr && allocation->size == 0) {
      throw Fault(std::string(call) + ": memory was freed before the copy ran");
    }
    return ReachRange(pointer, bytes, call);
  }
};

void Copy::Run() const {
  const HostRange target = Reach(to, to_allocation);
  if (!staged.empty()) {
    std::memcpy(target.bytes, staged.data(), bytes);
    std::memset(target.shadow, 1, bytes);
    return;
  }
  const HostRange source = Reach(from, from_allocation);
  if (from_place == Place::kPinned && pinned_source.num_writes == Contents::NumWrites(source) &&
      pinned_source.hash != Contents::Of(source, bytes).hash) {
    throw Fault(std::string(call) + ": the host has changed the pinned source since the call");
  }
  std::memmove(target.bytes, source.bytes, bytes);
  if (target.shadow == nullptr) {
    if (target.allocation != nullptr) ++target.allocation->num_device_writes;
  } else if (source.shadow != nullptr) {
    std::memmove(target.shadow, source.shadow, bytes);
  } else {
    std::memset(target.shadow, 1, bytes);
  }
}

// `asynchronous`: the call that promises no more than it must.
void QueueCopy(Copy copy, cudaMemcpyKind kind, bool asynchronous, cudaStream_t stream) {
  if (copy.bytes == 0) return;
  const HostRange target = ReachRange(copy.to, copy.bytes, copy.call);
  const HostRange source = ReachRange(copy.from, copy.bytes, copy.call);
  if (!Matches(kind, target.shadow != nullptr, source.shadow != nullptr)) {
    throw Fault(std::string(copy.call) + ": the pointers are not of the kind that is named");
  }
  copy.to_place = PlaceOf(target);
  copy.from_place = PlaceOf(source);
  copy.to_allocation = target.allocation;
  copy.from_allocation = source.allocation;
  const bool to_device = copy.to_place == Place::kDevice;
  const bool stage = to_device && copy.from_place == Place::kPageable;
  if (stage) copy.staged.assign(source.bytes, source.bytes + copy.bytes);
  if (copy.from_place == Place::kPinned) copy.pinned_source = Contents::Of(source, copy.bytes);
  const bool waits_for_end = !to_device ? !asynchronous || copy.to_place == Place::kPageable ||
                                              copy.from_place != Place::kDevice
                                        : !asynchronous && copy.from_place == Place::kPinned;
  const auto state = StateOf(stream);
  const StreamMark mark = Streams().Queue(state,
                                          {.kind = OperationKind::kCopy,
                                           .name = copy.call,
                                           .bytes = copy.bytes,
                                           .direction = KindOf(copy.to_place, copy.from_place)},
                                          [copy = std::move(copy)] {
                                            copy.Run();
                                            return true;
                                          });
  if (waits_for_end) Streams().Wait(mark);
}

void QueueSet(const char* call, void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  ReachRange(to, bytes, call);
  Streams().Queue(StateOf(stream), {.kind = OperationKind::kSet, .name = call, .bytes = bytes},
                  [=] {
                    const HostRange target = ReachRange(to, bytes, call);
                    std::memset(target.bytes, value, bytes);
                    if (target.shadow != nullptr) std::memset(target.shadow, 1, bytes);
                    return true;
                  });
}

}  // namespace

void NoteHostFunction() { ++num_host_functions; }

}  // namespace lynx::simt

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  simt::QueueCopy({.call = "cudaMemcpy", .to = to, .from = from, .bytes = bytes}, kind,
                  /*asynchronous=*/false, nullptr);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  simt::QueueCopy({.call = "cudaMemcpyAsync", .to = to, .from = from, .bytes = bytes}, kind,
                  /*asynchronous=*/true, stream);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  simt::QueueSet("cudaMemset", to, value, bytes, nullptr);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  simt::QueueSet("cudaMemsetAsync", to, value, bytes, stream);
  return cudaSuccess;
}
