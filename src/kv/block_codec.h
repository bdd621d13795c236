// SPDX-License-Identifier: Apache-2.0
// How the KV of a block becomes fewer bytes, and comes back bit for bit.
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

  // Replaces *bytes. The block is full. is_first: it begins a sequence.
  virtual void Encode(BlockId block, bool is_first, std::vector<std::byte>* bytes) = 0;
  // Fills the block with what Encode, called with the same is_first, was given.
  virtual void Decode(std::span<const std::byte> bytes, bool is_first, BlockId block) = 0;
};

}  // namespace lynx
