// SPDX-License-Identifier: Apache-2.0
#include "tests/simt/device_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "simt/launch.h"

namespace lynx::simt {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kReserved = size_t{64} << 30;  // addresses, not memory
// cudaMalloc aligns to 256 bytes; nothing may count on more.
constexpr size_t kOffsetInPage = 256;

std::byte* Reserve(int protection) {
  void* p =
      mmap(nullptr, kReserved, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("simt: cannot reserve address space");
    std::abort();
  }
  return static_cast<std::byte*>(p);
}

struct DeviceMemory {
  std::mutex mutex;
  std::byte* const device = Reserve(PROT_NONE);
  std::byte* const memory = Reserve(PROT_READ | PROT_WRITE);
  std::byte* const shadow = Reserve(PROT_READ | PROT_WRITE);
  size_t used_addresses = 0;
  size_t used_bytes = 0;
  size_t total_bytes = size_t{256} << 20;
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

const Allocation* Allocate(size_t bytes) {
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  const size_t span = PagesFor(bytes);
  if (m.used_bytes + bytes > m.total_bytes || m.used_addresses + span > kReserved) return nullptr;
  auto a = std::make_unique<Allocation>();
  a->base = reinterpret_cast<uintptr_t>(m.device + m.used_addresses + kOffsetInPage);
  a->size = a->full_size = bytes;
  a->to_memory = m.memory - m.device;
  a->to_shadow = m.shadow - m.device;
  a->id = ++m.num_allocations;
  m.used_addresses += span;
  m.used_bytes += bytes;
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
  if (a.size != a.full_size || (a.to_memory == 0) != pinned) return false;
  a.size = 0;
  if (pinned) {
    std::free(address);
    m.freed_pinned.push_back(std::move(found->second));
    m.by_base.erase(found);
    return true;
  }
  m.used_bytes -= a.full_size;
  const size_t span = PagesFor(a.full_size);
  const uintptr_t page = a.base - kOffsetInPage;
  madvise(reinterpret_cast<void*>(page + a.to_memory), span, MADV_DONTNEED);
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

void FreeAndTotalBytes(size_t* free, size_t* total) {
  DeviceMemory& m = Memory();
  std::lock_guard lock(m.mutex);
  *total = m.total_bytes;
  *free = m.total_bytes > m.used_bytes ? m.total_bytes - m.used_bytes : 0;
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
          .shadow = a->to_shadow == 0 ? nullptr : reinterpret_cast<uint8_t*>(at + a->to_shadow)};
}

}  // namespace lynx::simt
