// SPDX-License-Identifier: Apache-2.0
// A limit on what one task may take from the memory of the embedded Python. The sandbox has none,
// and 'x' * 10 ** 11 is a template too.
#pragma once

namespace lynx {

// Puts counting allocators under Python's own; once, after Python has started.
void LimitPythonMemory();

// While it lives, Python may take so much more than it has; then allocations fail, which Python
// code sees as MemoryError. On the interpreter's thread, one at a time.
class PythonMemoryBudget {
 public:
  PythonMemoryBudget();
  ~PythonMemoryBudget();
  PythonMemoryBudget(const PythonMemoryBudget&) = delete;
  PythonMemoryBudget& operator=(const PythonMemoryBudget&) = delete;
};

}  // namespace lynx
