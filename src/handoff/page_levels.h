// SPDX-License-Identifier: Apache-2.0
// How far the pages of an attempt are decoded, and which one is next. Pure logic: no threads.
//
// A page that has landed whole is decoded once, straight to the target. The anchor of one that has
// not is decoded as late as it may be: when the anchors of all pages are here, so that drafting can
// begin, or when kMaxPlainAnchors of them wait, so that little is left to do then.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace lynx {

struct PageDecode {
  int page = 0;
  int num_stages = 0;  // from how many: the anchor alone, or all
};

class PageLevels {
 public:
  static constexpr int kMaxPlainAnchors = 16;

  PageLevels() = default;  // of no pages
  PageLevels(int num_pages, int num_stages) : num_stages_(num_stages), pages_(num_pages) {}

  // This stage of the page has landed, once.
  void Landed(int page, int stage);

  bool anchor_due() const {
    const bool all_here = num_anchors_ == static_cast<int>(pages_.size());
    return num_plain_ > (all_here || num_stages_ == 1 ? 0 : kMaxPlainAnchors);
  }
  bool refine_due() const { return num_whole_ > 0; }
  // The page that anchor_due() or refine_due() is about. The caller decodes it and says Decoded
  // before it asks again.
  PageDecode NextAnchor();
  PageDecode NextRefine();
  void Decoded(const PageDecode& decode);

  // Every page holds its anchor or more; every page holds the target.
  bool all_readable() const { return num_decoded_ == static_cast<int>(pages_.size()); }
  bool all_refined() const { return num_refined_ == static_cast<int>(pages_.size()); }

 private:
  enum class Level : uint8_t { kNothing, kAnchor, kTarget };
  struct Page {
    int num_stages_here = 0;
    bool anchor_here = false;
    Level level = Level::kNothing;
  };
  bool is_whole(const Page& page) const { return page.num_stages_here == num_stages_; }

  int num_stages_ = 0;
  std::vector<Page> pages_;
  // In the order in which they became so; pages that were decoded since are skipped.
  std::deque<int> plain_;  // their anchors are here
  std::deque<int> whole_;
  int num_anchors_ = 0;  // pages whose anchor is here
  int num_plain_ = 0;    // of them, not decoded
  int num_whole_ = 0;    // pages that are here and do not hold the target
  int num_decoded_ = 0;
  int num_refined_ = 0;
};

}  // namespace lynx
