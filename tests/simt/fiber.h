// SPDX-License-Identifier: Apache-2.0
// A flow of control with a stack of its own (Boost.Context), told to the sanitizers. The host
// thread's own flow is a Fiber too, one that was never given a stack.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace lynx::simt {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // body(from) runs when the fiber is first switched to; it calls Arrive first and never returns.
  template <typename Body>
  void Start(size_t stack_bytes, Body body) {
    boost::context::protected_fixedsize_stack allocator(stack_bytes);
    boost::context::stack_context stack = allocator.allocate();
    stack_bottom_ = static_cast<char*>(stack.sp) - stack.size;
    stack_bytes_ = stack.size;
    has_own_stack_ = true;
#ifdef __SANITIZE_THREAD__
    tsan_ = __tsan_create_fiber(0);
#endif
    context_ = boost::context::fiber(std::allocator_arg,
                                     boost::context::preallocated(stack.sp, stack.size, stack),
                                     allocator, [body](boost::context::fiber&& from) {
                                       body(std::move(from));
                                       return boost::context::fiber();
                                     });
  }

  // Leaves this fiber, the running one, for another; returns when something switches back, which
  // `*previous` then names.
  void SwitchTo(Fiber& to, Fiber* const* previous) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&asan_, to.stack_bottom_, to.stack_bytes_);
#endif
#ifdef __SANITIZE_THREAD__
    if (!has_own_stack_) tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.tsan_, 0);
#endif
    boost::context::fiber from = std::move(to.context_).resume();
    Arrive(**previous, std::move(from));
  }

  // On arrival in this fiber: keeps where the previous one left off.
  void Arrive(Fiber& previous, boost::context::fiber&& from) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(asan_, &previous.stack_bottom_, &previous.stack_bytes_);
#endif
    previous.context_ = std::move(from);
  }

 private:
  boost::context::fiber context_;
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  bool has_own_stack_ = false;
#ifdef __SANITIZE_ADDRESS__
  void* asan_ = nullptr;
#endif
#ifdef __SANITIZE_THREAD__
  void* tsan_ = nullptr;
#endif
};

}  // namespace lynx::simt
