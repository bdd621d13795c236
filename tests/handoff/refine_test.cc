// SPDX-License-Identifier: Apache-2.0
// When pages are decoded, and how far: the rule, and real hand-offs whose chunks come late.
#include <gtest/gtest.h>

#include <thread>

#include "handoff/page_levels.h"
#include "tests/handoff/handoff_fixture.h"

namespace lynx {
namespace {

using Kind = ReceiveEvent::Kind;

constexpr int kNumStages = 3;

void LandAll(PageLevels& pages, int page) {
  for (int stage = 0; stage < kNumStages; ++stage) pages.Landed(page, stage);
}

TEST(PageLevelsTest, AWholePageIsDecodedOnce) {
  PageLevels pages(2, kNumStages);
  pages.Landed(1, 2);
  pages.Landed(1, 0);
  EXPECT_FALSE(pages.anchor_due());
  EXPECT_FALSE(pages.refine_due());
  pages.Landed(1, 1);
  EXPECT_FALSE(pages.anchor_due());
  ASSERT_TRUE(pages.refine_due());
  const PageDecode decode = pages.NextRefine();
  EXPECT_EQ(decode.page, 1);
  EXPECT_EQ(decode.num_stages, kNumStages);
  pages.Decoded(decode);
  EXPECT_FALSE(pages.refine_due());
  EXPECT_FALSE(pages.all_readable());
  LandAll(pages, 0);
  ASSERT_TRUE(pages.anchor_due()) << "the last anchor is here";
  EXPECT_EQ(pages.NextAnchor().page, 0);
  EXPECT_EQ(pages.NextAnchor().num_stages, kNumStages) << "and more than it";
  pages.Decoded(pages.NextAnchor());
  EXPECT_FALSE(pages.anchor_due());
  EXPECT_FALSE(pages.refine_due());
  EXPECT_TRUE(pages.all_readable());
  EXPECT_TRUE(pages.all_refined());
}

TEST(PageLevelsTest, AnchorsWaitUntilManyDoOrAllAreHere) {
  const int num_pages = PageLevels::kMaxPlainAnchors + 5;
  PageLevels pages(num_pages, kNumStages);
  for (int p = 0; p < PageLevels::kMaxPlainAnchors; ++p) {
    pages.Landed(p, 0);
    EXPECT_FALSE(pages.anchor_due());
  }
  pages.Landed(PageLevels::kMaxPlainAnchors, 0);
  ASSERT_TRUE(pages.anchor_due());
  const PageDecode first = pages.NextAnchor();
  EXPECT_EQ(first.page, 0);
  EXPECT_EQ(first.num_stages, 1);
  pages.Decoded(first);
  EXPECT_FALSE(pages.anchor_due());
  for (int p = PageLevels::kMaxPlainAnchors + 1; p < num_pages; ++p) pages.Landed(p, 0);
  int num_decoded = 1;
  for (; pages.anchor_due(); ++num_decoded) pages.Decoded(pages.NextAnchor());
  EXPECT_EQ(num_decoded, num_pages);
  EXPECT_TRUE(pages.all_readable());
  EXPECT_FALSE(pages.all_refined());
  for (int p = 0; p < num_pages; ++p) {
    pages.Landed(p, 2);
    pages.Landed(p, 1);
  }
  for (; pages.refine_due(); --num_decoded) pages.Decoded(pages.NextRefine());
  EXPECT_EQ(num_decoded, 0);
  EXPECT_TRUE(pages.all_refined());
}

TEST(PageLevelsTest, TheOnlyStageIsDecodedAtOnce) {
  PageLevels pages(2, 1);
  pages.Landed(0, 0);
  ASSERT_TRUE(pages.anchor_due());
  pages.Decoded(pages.NextAnchor());
  EXPECT_FALSE(pages.refine_due());
  EXPECT_FALSE(pages.all_refined());
  pages.Landed(1, 0);
  pages.Decoded(pages.NextAnchor());
  EXPECT_TRUE(pages.all_refined());
}

// Later stages of this page alone.
FaultyTransport::Match LaterStagesOfPage(uint32_t page) {
  return [page](std::span<const std::byte> bytes) {
    const auto header = ParseChunkHeader(bytes);
    return header.ok() && header->stage > 0 && header->page == page;
  };
}

// The attempt's tokens [first, end) as they are while the engine reads, which it may now or soon.
std::vector<std::byte> ReadTokens(Handoff& h, AttemptId id, int first, int end) {
  while (!h.receiver().Read(id, 0)) std::this_thread::yield();
  std::vector<std::byte> bytes = h.ReceivedTokens(id, first, end);
  h.receiver().Refine(id);
  return bytes;
}

TEST(RefineTest, APageThatIsHereWholeDoesNotWaitForTheOthers) {
  Handoff h({});
  h.receiver_transport().HoldOffers(LaterStagesOfPage(1));
  const AttemptId id = h.Begin({.num_tokens = 512});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kAnchorLanded));
  // Nothing says when a page of several is refined.
  for (int i = 0; ReadTokens(h, id, 0, 256) != h.SentTokens(id, 0, 256); ++i) {
    ASSERT_LT(i, 10000);
    EXPECT_FALSE(h.WaitFor(id, Kind::kTargetLanded, std::chrono::milliseconds(2)));
  }
  EXPECT_NE(ReadTokens(h, id, 256, 512), h.SentTokens(id, 256, 512));
  h.receiver_transport().ReleaseOffers();
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kRefined) << "nobody has to ask for it";
  h.ExpectEqual(id);
}

TEST(RefineTest, NothingIsWrittenWhileTheEngineReads) {
  Handoff h({});
  const AttemptId id = h.BeginAndRead({.num_tokens = 512});
  const std::vector<std::byte> before = h.ReceivedTokens(id, 0, 512);
  ASSERT_TRUE(h.WaitFor(id, Kind::kTargetLanded));
  EXPECT_FALSE(h.WaitFor(id, Kind::kRefined, std::chrono::milliseconds(20)));
  EXPECT_EQ(h.ReceivedTokens(id, 0, 512), before);
  EXPECT_FALSE(h.receiver().Read(id, 0)) << "a second time there is no need";
  h.receiver().Refine(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  h.ExpectEqual(id);
  EXPECT_FALSE(h.receiver().Read(id, 0));
  h.receiver().Refine(id);
}

// The engine reads and stops at many moments of a slow transfer: it finds anchors or the target,
// and in the end the target. (Under ThreadSanitizer: and never what is just being written.)
TEST(RefineTest, ReadingAtAnyMoment) {
  Handoff h({});
  h.receiver_transport().LimitPullRate(3e6);
  const AttemptId id = h.BeginAndRead({.num_tokens = 700});
  do {
    (void)h.ReceivedTokens(id, 0, 700);
    h.receiver().Refine(id);
    while (!h.Find(id, Kind::kRefined) && !h.receiver().Read(id, 0)) {
      (void)h.WaitFor(id, Kind::kRefined, std::chrono::milliseconds(1));
    }
  } while (!h.Find(id, Kind::kRefined));
  ASSERT_TRUE(h.WaitForEnd(id));
  h.ExpectEqual(id);
  EXPECT_EQ(h.Kinds(id).front(), Kind::kAnchorLanded);
  EXPECT_EQ(h.Kinds(id).back(), Kind::kRefined);
}

// What is about to land is not read, unless it does not come: then the receiver says so.
TEST(RefineTest, ATargetThatIsNearIsWaitedForButNotForEver) {
  Handoff h({});
  // The link's rate becomes known.
  h.receiver_transport().LimitPullRate(3e6);
  const AttemptId before = h.Begin({.num_tokens = 512});
  h.ComputeAll(before);
  h.Finish(before);
  ASSERT_GT(h.receiver().stats().bytes_per_second, 0);
  h.receiver_transport().HoldOffers(LaterStagesOfPage(1));
  const AttemptId id = h.Begin({.num_tokens = 512});
  h.ComputeAll(id);
  // Those of page 0 are here whole; so are anchors of page 1.
  const int64_t held_bytes = h.ReceiverEnd(before)->stage_bytes[2] / 2;
  while (h.receiver().stats().bytes[2] < 3 * held_bytes) std::this_thread::yield();
  ASSERT_TRUE(h.WaitFor(id, Kind::kAnchorLanded));
  EXPECT_FALSE(h.receiver().Read(id, int64_t{3600} * 1'000'000'000));
  constexpr int64_t kSoonNs = 200'000'000;
  if (!h.receiver().Read(id, kSoonNs)) {
    ASSERT_TRUE(h.WaitFor(id, Kind::kReadable));
    EXPECT_TRUE(h.receiver().Read(id, kSoonNs));
  }
  h.receiver().Refine(id);
  h.receiver_transport().ReleaseOffers();
  ASSERT_TRUE(h.WaitForEnd(id));
  h.ExpectEqual(id);
}

TEST(RefineTest, TheSenderKnowsWhatIsLeft) {
  Handoff h({});
  h.receiver_transport().HoldOffers(LaterStagesOfPage(1));
  const AttemptId id = h.Begin({.num_tokens = 512});
  EXPECT_EQ(h.sender().LeftNs(id), std::nullopt);
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kAnchorLanded));
  // The receiver may know of a chunk sooner than its sender.
  while (!h.sender().LeftNs(id)) std::this_thread::yield();
  EXPECT_GT(h.sender().LeftNs(id), 0);
  h.receiver_transport().ReleaseOffers();
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.sender().LeftNs(id), 0);
}

}  // namespace
}  // namespace lynx
