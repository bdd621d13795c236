// SPDX-License-Identifier: Apache-2.0
// What the ranks of a tensor-parallel model do together.
//
// A group has `size` ranks, each with a Collective of its own that one thread uses. Every rank
// makes the same calls in the same order with the same counts; a call ends when all ranks have made
// it (on a device: it is queued behind what was queued before, and what is queued after it sees its
// result).
//
// Sums are taken in rank order, ((x0 + x1) + x2) + …, element by element: the bits depend neither
// on the element's place, nor on the count, nor on which rank comes first.
#pragma once

#include <cstdint>

namespace lynx {

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data[i] becomes the sum of all ranks' data[i], i < n, on every rank. False when the group was
  // aborted: the data are then unspecified, and other ranks may still write to them until the whole
  // group is gone.
  [[nodiscard]] virtual bool AllReduceSum(float* data, int64_t n) = 0;

  // Any thread. Calls of every rank that are under way end, and all later ones fail: a rank that
  // cannot go on never leaves the others waiting.
  virtual void Abort() = 0;
};

}  // namespace lynx
