// SPDX-License-Identifier: Apache-2.0
#include "tests/simt/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "simt/launch.h"
#include "tests/simt/devices.h"

namespace lynx::simt {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kReserved = size_t{64} << 30;  // addresses, not memory
// cudaMalloc aligns to 256 bytes; nothing may count on more.
constexpr size_t kOffsetInPage = 256;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

// Without a file: private memory.
std::byte* Reserve(int protection, int file = -1) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* p = mmap(nullptr, kReserved, protection, flags | MAP_NORESERVE, file, 0);
  Require(p != MAP_FAILED, "simt: cannot reserve address space");
  return static_cast<std::byte*>(p);
}

// A file in memory, so that a part of it can be seen at two addresses.
int MemoryFile() {
  const int file = memfd_create("simt", MFD_CLOEXEC);
  Require(file >= 0 && ftruncate(file, kReserved) == 0, "simt: cannot make memory");
  return file;
}

struct DeviceMemory {
  std::mutex mutex;
  std::byte* const device = Reserve(PROT_NONE);
  const int file = MemoryFile();
  std::byte* const memory = Reserve(PROT_READ | PROT_WRITE, file);
  std::byte* const shadow = Reserve(PROT_READ | PROT_WRITE);
  size_t used_addresses = 0;
  size_t used_bytes[kMaxDevices] = {};
  size_t total_bytes = size_t{256} << 20;  // of each device
  int num_allocations = 0;
  std::map<uintptr_t, std::unique_ptr<Allocation>> by_base;  // freed device allocations stay
  std::vector<std::unique_ptr<Allocation>> freed_pinned;     // pointers to them may remain
};

// As on a GPU, memory outlives every object of the program; it is never destroyed.
DeviceMemory& Memory() {
  static auto* memory = new DeviceMemory;
  return *memory;
}

size_t PagesFor(size_t bytes) { return (kOffsetInPage + bytes + kPage) / kPage * kPage; }

}  // namespace

void SetDeviceMemory(size_t bytes) {
  std::lock_guard lock(Memory().mutex);
  Memory().total_bytes = bytes;
}

int NumAllocations() {
  std::lock_guard lock(Memory().mutex);
  return Memory().num_allocations;
}

const Allocation* Allocate(int device, size_t bytes) {
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  const size_t span = PagesFor(bytes);
  if (m.used_bytes[device] + bytes > m.total_bytes || m.used_addresses + span > kReserved) {
    return nullptr;
  }
  auto a = std::make_unique<Allocation>();
  a->base = reinterpret_cast<uintptr_t>(m.device + m.used_addresses + kOffsetInPage);
  a->size = a->full_size = bytes;
  a->to_memory = m.memory - m.device;
  a->to_shadow = m.shadow - m.device;
  a->device = device;
  a->id = ++m.num_allocations;
  m.used_addresses += span;
  m.used_bytes[device] += bytes;
  return (m.by_base[a->base] = std::move(a)).get();
}

const Allocation* AllocatePinned(size_t bytes) {
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  auto a = std::make_unique<Allocation>();
  a->base = reinterpret_cast<uintptr_t>(std::aligned_alloc(kPage, PagesFor(bytes)));
  a->size = a->full_size = bytes;
  a->id = ++m.num_allocations;
  return (m.by_base[a->base] = std::move(a)).get();
}

bool FreeAllocation(void* address, bool pinned) {
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  const auto found = m.by_base.find(reinterpret_cast<uintptr_t>(address));
  if (found == m.by_base.end()) return false;
  Allocation& a = *found->second;
  if (a.size != a.full_size || a.is_pinned() != pinned) return false;
  a.size = 0;
  if (pinned) {
    std::free(address);
    m.freed_pinned.push_back(std::move(found->second));
    m.by_base.erase(found);
    return true;
  }
  m.used_bytes[a.device] -= a.full_size;
  const size_t span = PagesFor(a.full_size);
  const uintptr_t page = a.base - kOffsetInPage;
  madvise(reinterpret_cast<void*>(page + a.to_memory), span, MADV_REMOVE);
  madvise(reinterpret_cast<void*>(page + a.to_shadow), span, MADV_DONTNEED);
  return true;
}

const Allocation* FindAllocation(const void* address) {
  if (address == nullptr) return nullptr;
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = m.by_base.upper_bound(at);
  if (next == m.by_base.begin()) return nullptr;
  const Allocation* a = std::prev(next)->second.get();
  return at - a->base <= a->full_size ? a : nullptr;
}

void FreeAndTotalBytes(int device, size_t* free, size_t* total) {
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  const size_t used = m.used_bytes[device];
  *total = m.total_bytes;
  *free = m.total_bytes > used ? m.total_bytes - used : 0;
}

void ShareWithHost(void* pointer) {
  const Allocation* a = FindAllocation(pointer);
  if (a == nullptr || a->is_pinned()) throw Fault("ShareWithHost: no device memory");
  DeviceMemory& m = Memory();
  const uintptr_t page = a->base - kOffsetInPage;
  auto* at = reinterpret_cast<std::byte*>(page);
  void* mapped = mmap(at, PagesFor(a->full_size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      m.file, at - m.device);
  Require(mapped == at, "simt: cannot map memory");
  std::memset(reinterpret_cast<void*>(a->base + a->to_shadow), 1, a->full_size);
}

HostRange ReachRange(const void* pointer, size_t bytes, const char* call) {
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const Allocation* a = FindAllocation(pointer);
  const auto device = reinterpret_cast<uintptr_t>(Memory().device);
  if (a == nullptr) {
    if (at - device >= kReserved) {
      return {.bytes = const_cast<std::byte*>(static_cast<const std::byte*>(pointer))};
    }
    throw Fault(std::string(call) + ": the device pointer lies in no allocation");
  }
  const size_t offset = at - a->base;
  if (a->size < bytes || offset > a->size - bytes) {
    std::ostringstream what;
    what << call << ": bytes " << offset << ".." << offset + bytes << " of allocation #" << a->id;
    if (a->size == 0) {
      what << ", which was freed";
    } else {
      what << ", which has " << a->size;
    }
    throw Fault(what.str());
  }
  return {.bytes = reinterpret_cast<std::byte*>(at + a->to_memory),
          .shadow = a->to_shadow == 0 ? nullptr : reinterpret_cast<uint8_t*>(at + a->to_shadow),
          .allocation = a};
}

}  // namespace lynx::simt
