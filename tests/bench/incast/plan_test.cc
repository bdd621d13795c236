// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/plan.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lynx {
namespace {

// All at 100 bytes per second.
std::vector<ClassBytes> Ideal(const std::vector<IncastRequest>& requests) {
  return IdealSchedule(requests, 100);
}

TEST(IdealScheduleTest, ALoneRequestTakesItsBytes) {
  EXPECT_EQ(Ideal({{.arrival_s = 5, .bytes = {100, 200, 50}}}),
            (std::vector<ClassBytes>{{1, 3, 3.5}}));
}

TEST(IdealScheduleTest, AnAnchorInterruptsWhateverElseMoves) {
  const auto done =
      Ideal({{.arrival_s = 0, .bytes = {100, 200, 100}}, {.arrival_s = 2, .bytes = {100, 100, 0}}});
  EXPECT_EQ(done[0], (ClassBytes{1, 4, 6}));
  EXPECT_EQ(done[1], (ClassBytes{1, 3, 0})) << "its residual is shorter than what the first's was";
}

TEST(IdealScheduleTest, ShortestFirstUntilOneHasWaited) {
  // At 9 s, 800 bytes are left of the second. The third has fewer, but 9 s are worth 225.
  const auto done = Ideal({{.arrival_s = 0, .bytes = {800, 0, 0}},
                           {.arrival_s = 0, .bytes = {900, 0, 0}},
                           {.arrival_s = 9, .bytes = {600, 0, 0}}});
  EXPECT_EQ(done[0][0], 8);
  EXPECT_EQ(done[1][0], 17);
  EXPECT_EQ(done[2][0], 14);
}

TEST(IdealScheduleTest, KeepsTheLinkBusy) {
  const std::map<int, ClassBytes> sizes = {{1, {10, 20, 5}}, {2, {30, 40, 15}}};
  const IncastLoad load{.num_senders = 3,
                        .num_requests = 200,
                        .bytes_per_second = 100,
                        .load = 50,  // all there at once
                        .seed = 4};
  const std::vector<IncastRequest> requests = PlanArrivals(load, sizes);
  const auto done = Ideal(requests);
  double bytes = 0, end_s = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    bytes = std::accumulate(requests[i].bytes.begin(), requests[i].bytes.end(), bytes);
    end_s = std::max(end_s, requests[i].arrival_s + done[i][2]);
  }
  EXPECT_NEAR(end_s - requests[0].arrival_s, bytes / 100, 1e-6);
}

TEST(PlanArrivalsTest, MeetsTheLoadAndKnowsItsSeed) {
  const std::map<int, ClassBytes> sizes = {{1, {10, 20, 5}}, {2, {30, 40, 15}}};
  IncastLoad load{
      .num_senders = 4, .num_requests = 20000, .bytes_per_second = 1000, .load = 0.7, .seed = 1};
  const std::vector<IncastRequest> requests = PlanArrivals(load, sizes);
  double bytes = 0;
  std::vector<int> of_sender(4);
  for (const IncastRequest& request : requests) {
    bytes = std::accumulate(request.bytes.begin(), request.bytes.end(), bytes);
    ++of_sender[request.sender];
  }
  EXPECT_NEAR(bytes / requests.back().arrival_s, 700, 20);
  for (int count : of_sender) EXPECT_NEAR(count, 5000, 250);
  EXPECT_EQ(PlanArrivals(load, sizes)[7].arrival_s, requests[7].arrival_s);
  load.seed = 2;
  EXPECT_NE(PlanArrivals(load, sizes)[7].arrival_s, requests[7].arrival_s);
}

}  // namespace
}  // namespace lynx
