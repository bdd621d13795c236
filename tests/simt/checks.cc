// SPDX-License-Identifier: Apache-2.0
#include "simt/checks.h"

#include <sstream>

namespace lynx::simt {

RunningBlock block;

namespace {

bool InWarp(uint16_t who, uint16_t thread) {
  who &= ~kAtomic;
  if (who == kSeveralWarps) return false;
  const int warp = (who & kSeveralOfWarp) != 0 ? who & ~kSeveralOfWarp : who / 32;
  return warp == thread / 32;
}

uint16_t WarpEpoch() { return block.warp_epoch[block.thread / 32]; }

std::string Who(uint16_t who) {
  if ((who & kAtomic) != 0) return "atomics of " + Who(who & ~kAtomic);
  if (who == kSeveralWarps) return "threads of several warps";
  if ((who & kSeveralOfWarp) != 0)
    return "threads of warp " + std::to_string(who & ~kSeveralOfWarp);
  return "thread " + std::to_string(who);
}

[[noreturn]] void ReportRace(const SharedArray* a, size_t offset, const char* verb,
                             const char* past, const Access& other, const Site& site) {
  std::ostringstream what;
  what << "race: " << verb << " of byte " << block.memory + offset - a->base << " of shared array "
       << a->name << ", which " << Who(other.who) << ' ' << past << " since the last barrier";
  ReportFault(site, what.str());
}

// Whether an access of the running thread at this moment is ordered after `other`.
bool Ordered(const Access& other) {
  if (other.epoch != block.epoch) return true;
  return InWarp(other.who, block.thread) && other.warp_epoch != WarpEpoch();
}

void CheckNotUnderCopy(const SharedArray* a, size_t offset, size_t bytes, const char* verb,
                       const Site& site) {
  if (block.copies_under_way == 0) return;
  for (size_t i = 0; i < bytes; ++i) {
    if (block.under_copy[offset + i] == 0) continue;
    std::ostringstream what;
    what << verb << " of byte " << block.memory + offset + i - a->base << " of shared array "
         << a->name << ", where a CopyAsync16 has not been waited for";
    ReportFault(site, what.str());
  }
}

// Adds the running thread to those of one kind (readers, or atomics) that do not race with each
// other. One mark stands for all: any thread of another warp conflicts just as well as that one,
// and what the same warp did before is ordered by __syncwarp.
void AddTo(Access& seen, uint16_t kind) {
  const Access mine = {block.epoch, WarpEpoch(), static_cast<uint16_t>(block.thread | kind)};
  if (seen.epoch != block.epoch || seen.who == mine.who) {
    seen = mine;
  } else if (!InWarp(seen.who, block.thread)) {
    seen = {block.epoch, 0, static_cast<uint16_t>(kSeveralWarps | kind)};
  } else if (seen.warp_epoch != mine.warp_epoch) {
    seen = mine;
  } else {
    seen.who = static_cast<uint16_t>(kSeveralOfWarp | block.thread / 32 | kind);
  }
}

void AddWrite(Access& seen, uint16_t who) {
  const Access mine = {block.epoch, WarpEpoch(), who};
  const bool atomic = (who & kAtomic) != 0;
  if (atomic && seen.epoch == block.epoch) {
    if ((seen.who & kAtomic) != 0) return AddTo(seen, kAtomic);
    // One's own plain write just before stays: it is what other threads race with.
    if (seen.who == block.thread && seen.warp_epoch == mine.warp_epoch) return;
  }
  seen = mine;
}

}  // namespace

void CheckSharedRead(const SharedArray* a, size_t offset, size_t bytes, const Site& site) {
  CheckNotUnderCopy(a, offset, bytes, "read", site);
  for (size_t i = offset; i < offset + bytes; ++i) {
    ByteHistory& h = block.history[i];
    if (h.write.epoch < block.first_epoch) {
      std::ostringstream what;
      what << "read of byte " << block.memory + i - a->base << " of shared array " << a->name
           << ", which no thread of the block has written";
      ReportFault(site, what.str());
    }
    if ((h.write.who & ~kAtomic) != block.thread && !Ordered(h.write)) {
      ReportRace(a, i, "read", "wrote", h.write, site);
    }
    AddTo(h.read, 0);
  }
}

void CheckSharedWrite(const SharedArray* a, size_t offset, size_t bytes, uint16_t who,
                      const Site& site) {
  CheckNotUnderCopy(a, offset, bytes, "write", site);
  const bool atomic = (who & kAtomic) != 0;
  for (size_t i = offset; i < offset + bytes; ++i) {
    ByteHistory& h = block.history[i];
    if (atomic && h.write.epoch < block.first_epoch) {
      ReportFault(site, std::string("atomic on shared array ") + a->name +
                            ", where no thread of the block has written");
    }
    const bool both_atomic = atomic && (h.write.who & kAtomic) != 0;
    if (!both_atomic && (h.write.who & ~kAtomic) != block.thread && !Ordered(h.write)) {
      ReportRace(a, i, "write", "wrote", h.write, site);
    }
    if (h.read.who != block.thread && !Ordered(h.read)) {
      ReportRace(a, i, "write", "read", h.read, site);
    }
    AddWrite(h.write, who);
  }
}

namespace {

void DescribeElement(std::ostringstream& what, ptrdiff_t offset, size_t bytes) {
  what << " at byte " << offset << " (element " << offset / static_cast<ptrdiff_t>(bytes)
       << ") of ";
}

}  // namespace

void ReportGlobal(const Allocation* a, uintptr_t at, size_t bytes, size_t alignment,
                  const char* verb, const Site& site) {
  std::ostringstream what;
  if (a == nullptr) {
    what << verb << " of " << bytes << " bytes through "
         << (at == 0 ? "a null pointer" : "a pointer that is not device memory");
    ReportFault(site, what.str());
  }
  const auto offset = static_cast<ptrdiff_t>(at - a->base);
  const bool inside = offset >= 0 && offset + bytes <= a->size;
  if (!block.running) {
    what << "host code: ";
  } else if (a->size == 0) {
    what << "use after free: ";
  } else if (!inside) {
    what << "out of bounds: ";
  } else if (alignment > 0 && at % alignment != 0) {
    what << "misaligned: ";
  } else if (!Reaches(a)) {
    what << "out of reach (memory of device " << a->device << "): ";
  } else {
    what << "uninitialized: ";
  }
  what << verb << " of " << bytes << " bytes";
  DescribeElement(what, offset, bytes);
  what << "global allocation #" << a->id << " of " << a->full_size << " bytes";
  ReportFault(site, what.str());
}

void ReportShared(const SharedArray* a, uintptr_t at, size_t bytes, size_t alignment,
                  const char* verb, const Site& site) {
  std::ostringstream what;
  if (a == nullptr) {
    what << verb << " of " << bytes << " bytes through a null shared pointer";
    ReportFault(site, what.str());
  }
  const auto offset = static_cast<ptrdiff_t>(at - reinterpret_cast<uintptr_t>(a->base));
  const bool inside = offset >= 0 && offset + bytes <= a->size;
  what << (!inside               ? "out of bounds: "
           : at % alignment != 0 ? "misaligned: "
                                 : "host code: ")
       << verb << " of " << bytes << " bytes";
  DescribeElement(what, offset, bytes);
  what << "shared array " << a->name << " of " << a->size << " bytes";
  ReportFault(site, what.str());
}

}  // namespace lynx::simt
