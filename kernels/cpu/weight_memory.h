// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace lynx::cpu {

// Memory for the packed weights of a model, one behind the other in large pages. A decode step
// reads all of it in order, faster than by 4 KiB pages or from many places, at whose ends the
// hardware's prefetchers stop.
class WeightMemory {
 public:
  // Aligned to 64 bytes, contents undefined; null when there is not so much. A run of memory goes
  // back when the last weight in it does, the newest run not before this object.
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  std::shared_ptr<std::byte> run_;
  size_t size_ = 0, used_ = 0;  // of the run
};

}  // namespace lynx::cpu
