// SPDX-License-Identifier: Apache-2.0
// Objects that a call borrows and the next one finds again, with the memory they have grown to: no
// allocation per page, and no pages of memory that the kernel must clear anew. There are as many as
// calls ran at the same time.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lynx {

// Any thread may call Borrow. Outlives what it lends.
template <typename T>
class ScratchPool {
 public:
  // Owns an object until it goes back.
  class Loan {
   public:
    Loan(ScratchPool& pool, std::unique_ptr<T> object) : pool_(pool), object_(std::move(object)) {}
    Loan(const Loan&) = delete;
    ~Loan() {
      std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(object_));
    }
    T& operator*() const { return *object_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<T> object_;
  };

  // As the borrower before left it, or a new one.
  Loan Borrow() {
    std::unique_ptr<T> object;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        object = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (object == nullptr) object = std::make_unique<T>();
    return Loan(*this, std::move(object));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace lynx
