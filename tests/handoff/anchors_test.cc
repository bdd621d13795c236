// SPDX-License-Identifier: Apache-2.0
// Attempts with anchors of their own: the same planes in the same order, cut elsewhere.
#include <gtest/gtest.h>

#include "lynx/plane_format.h"
#include "tests/handoff/handoff_fixture.h"

namespace lynx {
namespace {

using Kind = ReceiveEvent::Kind;

constexpr int kNumLayers = 3;  // of the fixture

AnchorPlanes Planes(const std::string& name) {
  if (name == "target") return AnchorPlanes(kNumLayers * 2, kNumPlanes);
  return PlanesOfWidths(*UniformWidths(name, kNumLayers));
}

class EveryAnchor : public testing::TestWithParam<KvDtype> {};

// All at once, over one pair, so that attempts of different formats mix.
TEST_P(EveryAnchor, EveryBitArrives) {
  Handoff h({.dtype = GetParam()});
  const std::vector<std::string> names = {"k2v2", "k3v2", "k4v2", "k4v3", "k4v4", "target"};
  std::vector<AttemptId> ids;
  for (const std::string& name : names) {
    ids.push_back(h.Begin({.num_tokens = 300, .anchor = Planes(name)}));
  }
  const AttemptId own = h.Begin({.num_tokens = 300});
  for (const AttemptId id : ids) h.ComputeAll(id);
  h.ComputeAll(own);
  h.Finish(own);
  int64_t before = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool whole = names[i] == "target";
    if (!whole) {
      ASSERT_TRUE(h.WaitFor(ids[i], Kind::kTargetLanded)) << names[i];
      h.receiver().Refine(ids[i]);
    }
    ASSERT_TRUE(h.WaitForEnd(ids[i])) << names[i];
    ASSERT_EQ(h.ReceiverEnd(ids[i])->kind, Kind::kRefined) << h.ReceiverEnd(ids[i])->error;
    h.ExpectEqual(ids[i]);
    const std::vector<int64_t>& bytes = h.ReceiverEnd(ids[i])->stage_bytes;
    EXPECT_EQ(bytes.size(), whole ? 1u : 3u);
    EXPECT_GT(bytes[0], before) << names[i];
    before = bytes[0];
    EXPECT_EQ(bytes[0] == h.ReceiverEnd(own)->stage_bytes[0], names[i] == "k4v2");
  }
}
INSTANTIATE_TEST_SUITE_P(All, EveryAnchor, testing::Values(KvDtype::kBf16, KvDtype::kF32));

TEST(Anchors, WithoutRoomStagesAreEncodedAgainUnderTheSameCut) {
  Handoff h({.sender = {.max_posted_chunks = 2, .max_held_bytes = 0}});
  const AttemptId wide = h.Begin({.num_tokens = 600, .anchor = Planes("k4v4")});
  const AttemptId narrow = h.Begin({.num_tokens = 600, .anchor = Planes("k2v2")});
  h.ComputeAll(wide);
  h.ComputeAll(narrow);
  for (const AttemptId id : {wide, narrow}) {
    h.Finish(id);
    h.ExpectEqual(id);
  }
}

TEST(Anchors, BothSidesMustMeanTheSame) {
  Handoff h({});
  const AttemptId id = h.NewAttempt({.num_tokens = 300, .anchor = Planes("k3v2")});
  ASSERT_TRUE(h.BeginReceive(id).ok());
  h.SetAnchor(id, Planes("k2v2"));
  ASSERT_TRUE(h.BeginSend(id).ok());
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->error.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Anchors, ThoseThatThePlanCannotCutAreRefused) {
  Handoff h({});
  for (const AnchorPlanes& bad :
       {AnchorPlanes{1, 1}, AnchorPlanes(kNumLayers * 2, 0), AnchorPlanes(kNumLayers * 2, 6)}) {
    const AttemptId id = h.NewAttempt({.num_tokens = 300, .anchor = bad});
    EXPECT_EQ(h.BeginReceive(id).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(h.BeginSend(id).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(h.receiver().stats().transfers_in_flight, 0);
  EXPECT_EQ(h.sender().num_attempts(), 0);
}

TEST(Anchors, ABaselineCanBeSentWhole) {
  Handoff h({.codec = "paper"});
  const AttemptId id = h.Begin({.num_tokens = 300, .anchor = AnchorPlanes(kNumLayers * 2, 2)});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.Kinds(id), std::vector<Kind>{Kind::kRefined});
}

}  // namespace
}  // namespace lynx
