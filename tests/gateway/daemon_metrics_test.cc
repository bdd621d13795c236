// SPDX-License-Identifier: Apache-2.0
#include "gateway/daemon_metrics.h"

#include "gtest/gtest.h"

namespace lynx {
namespace {

// Of the one daemon's series of that name with that label; -1: there is none.
double ValueOf(const DaemonState& daemon, const std::string& name, const std::string& label = "",
               const std::string& label_value = "") {
  for (const auto& family : DaemonMetrics({daemon}, "m")) {
    if (family.name != name) continue;
    for (const auto& metric : family.metric) {
      bool found = label.empty();
      for (const auto& l : metric.label) found |= l.name == label && l.value == label_value;
      if (found) return metric.gauge.value + metric.counter.value;
    }
  }
  return -1;
}

TEST(DaemonMetrics, PackedKvStandsUnderTheNameOfItsResident) {
  DaemonState daemon;
  daemon.block_size = 64;
  daemon.stats.blocks_total = 100;
  daemon.stats.blocks_packed = 5;
  daemon.stats.blocks_cached = 3;
  daemon.stats.block_bytes = 1 << 20;
  daemon.stats.packed_tokens = 512;
  daemon.stats.packed_bytes = 4 << 20;
  daemon.stats.encoded_tokens = 1024;
  daemon.stats.restored_tokens = 192;
  daemon.stats.pack_ns = 1'500'000'000;
  for (const char* resident : {"exact", "8bit"}) {
    daemon.kv_resident = resident;
    const std::string other = daemon.kv_resident == "8bit" ? "exact" : "8bit";
    EXPECT_EQ(ValueOf(daemon, "lynx:kv_tokens_per_gib", "resident", "bf16"), 64 * 1024);
    EXPECT_EQ(ValueOf(daemon, "lynx:kv_tokens_per_gib", "resident", resident), 512 * 256);
    EXPECT_EQ(ValueOf(daemon, "lynx:kv_tokens_per_gib", "resident", other), 0);
    EXPECT_EQ(ValueOf(daemon, "lynx:prefix_cache_tokens", "resident", "bf16"), 3 * 64);
    EXPECT_EQ(ValueOf(daemon, "lynx:prefix_cache_tokens", "resident", resident), 512);
    EXPECT_EQ(ValueOf(daemon, "lynx:prefix_cache_tokens", "resident", other), 0);
    EXPECT_EQ(ValueOf(daemon, "lynx:kv_blocks", "state", "packed"), 5);
    EXPECT_EQ(ValueOf(daemon, "lynx:prefix_cache_packed_tokens_total"), 1024);
    EXPECT_EQ(ValueOf(daemon, "lynx:prefix_cache_restored_tokens_total"), 192);
    EXPECT_EQ(ValueOf(daemon, "lynx:kv_pack_seconds_total", "operation", "encode"), 1.5);
    EXPECT_EQ(ValueOf(daemon, "lynx:cache_config_info", "resident", resident), 1);
  }
}

TEST(DaemonMetrics, EjectedPrefillDaemonsAreCounted) {
  const DaemonState daemon{.stats = {.prefills_ejected = 1, .prefill_ejections = 4}};
  EXPECT_EQ(ValueOf(daemon, "lynx:prefill_daemons_ejected"), 1);
  EXPECT_EQ(ValueOf(daemon, "lynx:prefill_ejections_total"), 4);
}

TEST(DaemonMetrics, WithoutPackedKvItsTokensPerGibAreZero) {
  const DaemonState daemon{.stats = {.block_bytes = 1 << 20}};
  EXPECT_EQ(ValueOf(daemon, "lynx:kv_tokens_per_gib", "resident", "exact"), 0);
  EXPECT_EQ(ValueOf(daemon, "lynx:kv_tokens_per_gib", "resident", "8bit"), 0);
}

}  // namespace
}  // namespace lynx
