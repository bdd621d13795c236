// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace lynx::cuda {

// Hands out ranges of [0, size): the first that is large enough; neighbours that come back are
// joined. Bookkeeping only. Not thread safe.
class RangeAllocator {
 public:
  static constexpr size_t kAlignment = 256;

  explicit RangeAllocator(size_t size) { free_[0] = size / kAlignment * kAlignment; }

  // The offset; nothing when no free range is as long.
  std::optional<size_t> Allocate(size_t bytes) {
    const size_t want = std::max<size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [=](const auto& range) { return range.second >= want; });
    if (found == free_.end()) return std::nullopt;
    const auto [offset, size] = *found;
    free_.erase(found);
    if (size > want) free_[offset + want] = size - want;
    used_[offset] = want;
    return offset;
  }
  // False for what was not handed out.
  bool Free(size_t offset) {
    const auto used = used_.find(offset);
    if (used == used_.end()) return false;
    auto [range, added] = free_.emplace(offset, used->second);
    used_.erase(used);
    const auto next = std::next(range);
    if (next != free_.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range == free_.begin()) return true;
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      free_.erase(range);
    }
    return true;
  }

 private:
  std::map<size_t, size_t> free_;  // offset -> size, no two of them neighbours
  std::map<size_t, size_t> used_;
};

}  // namespace lynx::cuda
