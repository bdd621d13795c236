// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/network_lab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace lynx {
namespace {

using ::testing::HasSubstr;

int NumNamespaces() {
  std::error_code error;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/var/run/netns", error)) {
    count += entry.path().filename().string().rfind("lynxlab-", 0) == 0;
  }
  return count;
}

TEST(NetworkLabTest, LinksAreNoFasterThanAskedAndNothingStays) {
  {
    const auto lab = NetworkLab::Create({.num_prefill = 2});
    if (!lab.ok()) GTEST_SKIP() << lab.status();
    EXPECT_EQ(NumNamespaces(), 4);
    EXPECT_THAT(NetworkLab::Create({}).status().message(), HasSubstr("another lab"));
    for (const LinkSpec link : {LinkSpec{200e6, 0}, LinkSpec{2e9, 0.005}}) {
      ASSERT_TRUE((*lab)->SetLink(link).ok());
      const auto measured = (*lab)->Measure();
      ASSERT_TRUE(measured.ok()) << measured.status();
      EXPECT_GT(measured->bits_per_second, 0);
      EXPECT_LE(measured->bits_per_second, link.bits_per_second);
      EXPECT_GE(measured->rtt_s, link.rtt_s);
      std::printf("%.0f Mbit/s: %.1f Mbit/s, %.0f us\n", link.bits_per_second / 1e6,
                  measured->bits_per_second / 1e6, measured->rtt_s * 1e6);
    }
  }
  EXPECT_EQ(NumNamespaces(), 0);
}

}  // namespace
}  // namespace lynx
