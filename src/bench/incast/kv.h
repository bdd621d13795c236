// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/incast/plan.h"
#include "kv/kv_cache.h"
#include "lynx/backend.h"
#include "lynx/codec.h"

namespace lynx {

// What both sides agree on, and the senders' cache. Made once; the processes inherit it.
struct IncastKv {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Codec> codec;
  SendPlan plan;
  std::unique_ptr<KvCache> cache;   // the senders'; every request sends its first blocks
  std::map<int, ClassBytes> sizes;  // what so many tokens of it make

  static absl::StatusOr<IncastKv> Create(const std::string& codec, const KvLayout& layout,
                                         const std::vector<int>& prompt_tokens);
};

// The blocks that a request of so many tokens has, on either side.
std::vector<BlockId> FirstBlocks(int num_tokens);

}  // namespace lynx
