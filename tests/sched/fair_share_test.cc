// SPDX-License-Identifier: Apache-2.0
#include "sched/fair_share.h"

#include <map>

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(FairShare, CountsPromptOnceAndOutputTwice) {
  FairShare f;
  f.Enqueue(1);
  f.ChargePrompt(1, 100);
  f.ChargeOutput(1, 10);
  EXPECT_EQ(f.counter(1), 120);
  EXPECT_EQ(f.counter(2), 0);
}

TEST(FairShare, AbsenceSavesNothingUp) {
  FairShare f;
  f.Enqueue(1);
  f.ChargeOutput(1, 500);
  f.Enqueue(2);
  EXPECT_EQ(f.counter(2), 1000) << "lifted to the least of those that wait";
  f.ChargeOutput(2, 100);
  f.Enqueue(3);
  EXPECT_EQ(f.counter(3), 1000);
  f.Enqueue(2);
  EXPECT_EQ(f.counter(2), 1200) << "not again while it waits";
}

TEST(FairShare, AnEmptyQueueRemembersTheLastClient) {
  FairShare f;
  f.Enqueue(1);
  f.Dequeue(1);
  f.ChargePrompt(1, 300);
  f.Enqueue(2);
  EXPECT_EQ(f.counter(2), 300);
  f.Dequeue(2);
  f.Enqueue(1);
  EXPECT_EQ(f.counter(1), 300) << "a debt is kept";
}

// Clients that always wait get the same service, whatever the size of their requests.
TEST(FairShare, BackloggedClientsGetTheSame) {
  FairShare f;
  const std::map<uint64_t, int> prompt_tokens = {{1, 1000}, {2, 100}, {3, 10}};
  std::map<uint64_t, double> served;
  for (const auto& [client, tokens] : prompt_tokens) f.Enqueue(client);
  for (int i = 0; i < 5000; ++i) {
    uint64_t next = 1;
    for (const auto& [client, tokens] : prompt_tokens) {
      if (f.counter(client) < f.counter(next)) next = client;
    }
    f.ChargePrompt(next, prompt_tokens.at(next));
    f.ChargeOutput(next, 5);
    served[next] += prompt_tokens.at(next) + 10;
  }
  for (const auto& [client, tokens] : prompt_tokens) EXPECT_NEAR(served[client], served[1], 1010);
}

TEST(FairShare, MemoryIsBounded) {
  FairShare f;
  f.Enqueue(1);  // waits all the time
  for (uint64_t client = 2; client < 20000; ++client) {
    f.Enqueue(client);
    f.Dequeue(client);
    f.ChargePrompt(client, static_cast<int>(client));
    ASSERT_LE(f.num_clients(), 2 * FairShare::kMaxClients + 1);
  }
  EXPECT_EQ(f.counter(1), 0);
  EXPECT_GT(f.counter(19999), 0);
}

}  // namespace
}  // namespace lynx
