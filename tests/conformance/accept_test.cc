// SPDX-License-Identifier: Apache-2.0
// Acceptance on the device against the host's rule.
#include "kernels/cuda/accept.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "speculation/acceptance.h"
#include "tests/conformance/device.h"

namespace lynx::cuda {
namespace {

struct Batch {
  std::vector<VerifyGroup> groups;
  std::vector<TokenId> drafts, stop_tokens;
  std::vector<Choice> choices;
};

// Drafts that are right with probability `accuracy`, over a small vocabulary.
void AddGroup(int num_drafts, int num_rows, double accuracy, std::mt19937& rng, Batch& batch) {
  const auto token = [&rng] { return static_cast<TokenId>(rng() % 50); };
  VerifyGroup group{.row_begin = static_cast<int>(batch.choices.size()),
                    .num_rows = num_rows,
                    .draft_begin = static_cast<int>(batch.drafts.size()),
                    .num_drafts = num_drafts,
                    .stop_begin = static_cast<int>(batch.stop_tokens.size()),
                    .num_stop_tokens = static_cast<int>(rng() % 3)};
  for (int i = 0; i < group.num_stop_tokens; ++i) batch.stop_tokens.push_back(token());
  for (int i = 0; i < num_drafts; ++i) batch.drafts.push_back(token());
  std::bernoulli_distribution right(accuracy);
  for (int i = 0; i < num_rows; ++i) {
    const bool copy = i < num_drafts && right(rng);
    batch.choices.push_back({.token = copy ? batch.drafts[group.draft_begin + i] : token()});
  }
  batch.groups.push_back(group);
}

GroupAcceptance OnHost(const Batch& batch, const VerifyGroup& group) {
  const auto stop = batch.stop_tokens.begin() + group.stop_begin;
  GroupAcceptance result;
  const Acceptance acceptance = AcceptDrafts(
      std::span(batch.drafts).subspan(group.draft_begin, group.num_drafts), group.num_rows,
      [&](int row) {
        const TokenId token = batch.choices[group.row_begin + row].token;
        result.next_token = token;
        return TargetChoice{.token = token,
                            .ends_sequence = std::find(stop, stop + group.num_stop_tokens, token) !=
                                             stop + group.num_stop_tokens};
      });
  result.num_accepted = acceptance.num_accepted;
  result.num_chosen = acceptance.num_chosen;
  return result;
}

class AcceptTest : public DeviceTest {};

TEST_F(AcceptTest, EqualsTheHostsRule) {
  std::mt19937 rng(1);
  Batch batch;
  for (int i = 0; i < 400; ++i) {
    const int num_drafts = static_cast<int>(rng() % 9);
    const int rows = static_cast<int>(rng() % static_cast<uint32_t>(num_drafts + 2));
    AddGroup(num_drafts, i % 4 == 0 ? rows : num_drafts + 1, 0.8, rng, batch);
  }
  for (int num_drafts : {31, 32, 33, 63, 64, 65, 100}) {
    AddGroup(num_drafts, num_drafts, 1.0, rng, batch);
    AddGroup(num_drafts, num_drafts + 1, 1.0, rng, batch);
    AddGroup(num_drafts, num_drafts + 1, 0.98, rng, batch);
  }
  DeviceArray<VerifyGroup> groups(batch.groups);
  DeviceArray<TokenId> drafts(batch.drafts), stop_tokens(batch.stop_tokens);
  DeviceArray<Choice> choices(batch.choices);
  DeviceArray<GroupAcceptance> results(batch.groups.size());
  Accept(stream(), {.groups = groups.data(),
                    .num_groups = static_cast<int>(batch.groups.size()),
                    .drafts = drafts.data(),
                    .stop_tokens = stop_tokens.data(),
                    .choices = choices.data(),
                    .results = results.data()});
  const std::vector<GroupAcceptance> got = results.Download();
  for (size_t i = 0; i < got.size(); ++i) {
    const GroupAcceptance want = OnHost(batch, batch.groups[i]);
    ASSERT_EQ(got[i].num_accepted, want.num_accepted) << "group " << i;
    ASSERT_EQ(got[i].num_chosen, want.num_chosen) << "group " << i;
    ASSERT_EQ(got[i].next_token, want.next_token) << "group " << i;
  }
}

}  // namespace
}  // namespace lynx::cuda
