// SPDX-License-Identifier: Apache-2.0
// cuda_runtime.h: devices and memory. What is queued stands in stream_calls.cc and copies.cc.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>

#include "tests/simt/device_memory.h"
#include "tests/simt/devices.h"
#include "tests/simt/stream_queue.h"

namespace simt = lynx::simt;

namespace lynx::simt {
namespace {

std::atomic<int> num_devices{1};
std::atomic<uint64_t> peers[kMaxDevices];  // [device], bits of those it was connected to
thread_local int current_device = 0;

}  // namespace

void SetNumDevices(int count) {
  num_devices = count;
  for (std::atomic<uint64_t>& connected : peers) connected = 0;
}
int NumDevices() { return num_devices; }
int CurrentDevice() { return current_device; }
uint64_t ReachableDevices(int device) { return uint64_t{1} << device | peers[device]; }

}  // namespace lynx::simt

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }

// ---- the device ---------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* count) {
  *count = simt::NumDevices();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= simt::NumDevices()) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated");
  size_t free;
  simt::FreeAndTotalBytes(device, &free, &properties->totalGlobalMem);
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = simt::kMaxSharedBytes;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = simt::kMaxThreads;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= simt::NumDevices()) return cudaErrorInvalidDevice;
  simt::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = simt::CurrentDevice();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  simt::Streams().WaitForDevice(simt::CurrentDevice());
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  const uint64_t bit = uint64_t{1} << peer;
  const bool was_there = (simt::peers[simt::CurrentDevice()].fetch_or(bit) & bit) != 0;
  return was_there ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

// ---- memory -------------------------------------------------------------------------------------
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const simt::Allocation* a = simt::Allocate(simt::CurrentDevice(), bytes);
  if (a == nullptr) return cudaErrorMemoryAllocation;
  *pointer = reinterpret_cast<void*>(a->base);
  return cudaSuccess;
}
// Waits for what is queued on the memory's device.
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (const simt::Allocation* a = simt::FindAllocation(pointer); a != nullptr && !a->is_pinned()) {
    simt::Streams().WaitForDeviceWithoutFault(a->device);
  }
  if (simt::FreeAllocation(pointer, false)) return cudaSuccess;
  throw simt::Fault("cudaFree: no live allocation of cudaMalloc begins there");
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  *pointer = reinterpret_cast<void*>(simt::AllocatePinned(bytes)->base);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}
// Waits for nothing: what still uses the memory then faults.
cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr || simt::FreeAllocation(pointer, true)) return cudaSuccess;
  throw simt::Fault("cudaFreeHost: no live allocation of cudaHostAlloc begins there");
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  simt::FreeAndTotalBytes(simt::CurrentDevice(), free, total);
  return cudaSuccess;
}
