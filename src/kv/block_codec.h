// SPDX-License-Identifier: Apache-2.0
// How the KV of a block becomes fewer bytes, and comes back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lynx/types.h"

namespace lynx {

// One thread.
class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  // Decode gives back every bit of what Encode was given. If not, it gives the same bits each time.
  virtual bool lossless() const = 0;
  // Replaces *bytes. The block is full. is_first: it begins a sequence.
  virtual void Encode(BlockId block, bool is_first, std::vector<std::byte>* bytes) = 0;
  // Fills the block from what Encode, called with the same is_first, has made.
  virtual void Decode(std::span<const std::byte> bytes, bool is_first, BlockId block) = 0;
};

}  // namespace lynx
