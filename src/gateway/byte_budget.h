// SPDX-License-Identifier: Apache-2.0
// Memory that many holders share. Thread-safe; a Share is its holder's.
#pragma once

#include <atomic>
#include <cstddef>

namespace lynx {

class ByteBudget {
 public:
  explicit ByteBudget(size_t limit) : limit_(limit) {}

  class Share {
   public:
    explicit Share(ByteBudget& budget) : budget_(budget) {}
    ~Share() { Resize(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // False, and unchanged, when there is not so much left.
    bool Resize(size_t bytes) {
      const size_t total = budget_.used_ += bytes - bytes_;  // modulo 2^64
      if (bytes > bytes_ && total > budget_.limit_) {
        budget_.used_ -= bytes - bytes_;
        return false;
      }
      bytes_ = bytes;
      return true;
    }

   private:
    ByteBudget& budget_;
    size_t bytes_ = 0;
  };

 private:
  const size_t limit_;
  std::atomic<size_t> used_ = 0;
};

}  // namespace lynx
