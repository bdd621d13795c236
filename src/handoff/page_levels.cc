// SPDX-License-Identifier: Apache-2.0
#include "handoff/page_levels.h"

namespace lynx {

void PageLevels::Landed(int index, int stage) {
  Page& page = pages_[index];
  ++page.num_stages_here;
  if (stage == 0) {
    page.anchor_here = true;
    ++num_anchors_;
    ++num_plain_;
    plain_.push_back(index);
  }
  if (is_whole(page)) {
    ++num_whole_;
    whole_.push_back(index);
  }
}

PageDecode PageLevels::NextAnchor() {
  while (pages_[plain_.front()].level != Level::kNothing) plain_.pop_front();
  const int index = plain_.front();
  return {index, is_whole(pages_[index]) ? num_stages_ : 1};
}

PageDecode PageLevels::NextRefine() {
  while (pages_[whole_.front()].level == Level::kTarget) whole_.pop_front();
  return {whole_.front(), num_stages_};
}

void PageLevels::Decoded(const PageDecode& decode) {
  Page& page = pages_[decode.page];
  if (page.level == Level::kNothing) {
    --num_plain_;
    ++num_decoded_;
  }
  page.level = Level::kAnchor;
  if (decode.num_stages < num_stages_) return;
  page.level = Level::kTarget;
  --num_whole_;
  ++num_refined_;
}

}  // namespace lynx
