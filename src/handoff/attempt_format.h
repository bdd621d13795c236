// SPDX-License-Identifier: Apache-2.0
// What the bytes of one attempt are: the cut of its pages into stages, and the number by which the
// two sides make sure that they mean the same.
#pragma once

#include <memory>
#include <utility>

#include "codec/anchor_widths.h"
#include "codec/kv_page_codec.h"
#include "handoff/wire.h"

namespace lynx {

struct AttemptFormat {
  std::shared_ptr<const KvPageCodec> pages;
  uint64_t hash = 0;  // HandoffFormat
};

// Immutable after creation; every method may be called from any thread. The codec outlives it and
// what it makes.
class AttemptFormats {
 public:
  // The plan must fit codec and layout (KvPageCodec::Create is OK for them).
  AttemptFormats(const Codec& codec, SendPlan plan, const KvLayout& layout)
      : codec_(codec), layout_(layout), plan_(std::move(plan)), standard_(*Make(plan_)) {}

  // The plan's own anchor when `anchor` is empty. kInvalidArgument: see WithAnchor.
  absl::StatusOr<AttemptFormat> With(const AnchorPlanes& anchor) const {
    if (anchor.empty()) return standard_;
    LYNX_ASSIGN_OR_RETURN(const SendPlan plan, WithAnchor(plan_, anchor));
    return Make(plan);
  }

 private:
  absl::StatusOr<AttemptFormat> Make(const SendPlan& plan) const {
    LYNX_ASSIGN_OR_RETURN(std::shared_ptr<const KvPageCodec> pages,
                          KvPageCodec::Create(codec_, plan, layout_));
    return AttemptFormat{std::move(pages), HandoffFormat(codec_, plan, layout_)};
  }

  const Codec& codec_;
  const KvLayout layout_;
  const SendPlan plan_;
  const AttemptFormat standard_;
};

}  // namespace lynx
