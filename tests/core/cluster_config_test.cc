// SPDX-License-Identifier: Apache-2.0
#include "core/cluster_config.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Error(const std::string& yaml) {
  const auto config = ParseClusterConfig(yaml, "c.yaml");
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(ClusterConfig, SectionsInheritTopLevelKeys) {
  const auto config = ParseClusterConfig(
      "threads: 3\nmax_num_seqs: 8\n"
      "kv_cache_config: {host_cache_size: 1G}\n"
      "tensor_parallel_size: 2\n"
      "context_servers: {max_num_seqs: 16, tensor_parallel_size: 4}\n"
      "generation_servers: {kv_cache_config: {host_cache_size: 512M}}\n",
      "c.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->context.threads, 3);
  EXPECT_EQ(config->generation.threads, 3);
  EXPECT_EQ(config->context.tensor_parallel_size, 4);
  EXPECT_EQ(config->generation.tensor_parallel_size, 2);
  EXPECT_EQ(config->context.max_num_seqs, 16);
  EXPECT_EQ(config->generation.max_num_seqs, 8);
  EXPECT_EQ(config->context.kv_memory, int64_t{1} << 30);
  EXPECT_EQ(config->generation.kv_memory, int64_t{512} << 20);
}

TEST(ClusterConfig, ErrorsNameFileLineKeyAndReason) {
  EXPECT_EQ(Error("port: 80\nprot: 90\n"), "c.yaml:2: prot: unknown key; did you mean 'port'?");
  EXPECT_EQ(Error("kv:\n  codek: bf16\n"),
            "c.yaml:2: kv.codek: unknown key; did you mean 'codec'?");
  EXPECT_EQ(Error("port: 1\nport: 2\n"), "c.yaml:2: port: given twice");
  EXPECT_EQ(Error("port: many\n"), "c.yaml:1: port: want an integer");
  EXPECT_EQ(Error("tensor_parallel_size: 0\n"),
            "c.yaml:1: tensor_parallel_size: 0 is not in 1..64");
  EXPECT_EQ(Error("port: 70000\n"), "c.yaml:1: port: 70000 is not in 0..65535");
  EXPECT_EQ(
      Error("kv: {codec: zip}\n"),
      "c.yaml:1: kv.codec: 'zip' is not one of planes, bf16, bf16-lossless, int8, int8-channel, "
      "fp8, int4, int4-kivi, cachegen, paper");
  EXPECT_EQ(Error("colocated: 3\n"), "c.yaml:1: colocated: want true or false");
  EXPECT_EQ(Error("kv: 4\n"), "c.yaml:1: kv: want a section of keys");
  EXPECT_EQ(Error("generation_servers: {max_num_seqs: -3}"),
            "c.yaml:1: generation_servers.max_num_seqs: -3 is not in 1..4096");
  for (const char* origin :
       {"app.example", "https://", "https://app.example/", "https://a\"", "://a", "a b://c d"}) {
    EXPECT_THAT(Error(absl::StrCat("allowed_origins: ['*', '", origin, "']\n")),
                HasSubstr("c.yaml:1: allowed_origins: '"))
        << origin;
  }
  EXPECT_THAT(Error("schedule_style: context_first\n"), HasSubstr("has no meaning here"));
  EXPECT_THAT(Error("a: [1\n"), HasSubstr("c.yaml:"));
  EXPECT_THAT(Error("- 1\n"), HasSubstr("want a map"));
}

TEST(ClusterConfig, PrintsWhatItReads) {
  ClusterConfig config;
  config.model = "/m.gguf";
  config.served_model_name = {"a", "b/c"};
  config.allowed_origins = {"https://app.example:8443", "*"};
  config.context.urls = {"h:1"};
  config.kv.codec = "paper";
  config.transceiver.max_inflight_bytes = 123456;
  const auto read = ParseClusterConfig(ToYaml(config), "c.yaml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToYaml(*read), ToYaml(config));
  EXPECT_THAT(ToYaml(config), HasSubstr("free_gpu_memory_fraction: 0.9\n"));
  EXPECT_THAT(read->served_model_name, ElementsAre("a", "b/c"));
  EXPECT_THAT(read->allowed_origins, ElementsAre("https://app.example:8443", "*"));
}

TEST(ClusterConfig, WhatTheFileDoesNotNameStays) {
  ClusterConfig defaults;
  defaults.log_level = "debug";
  defaults.port = 7;
  const auto config = ParseClusterConfig("port: 9\n", "c.yaml", defaults);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->port, 9);
}

TEST(ClusterConfig, APeerIsNotLostBetweenTwoHeartbeats) {
  auto config = ParseClusterConfig(
      "model: /m\ncolocated: true\ngeneration_servers: {urls: [b:1]}\n"
      "cache_transceiver_config: {heartbeat_interval_ms: 60000, suspect_after_ms: 50}\n",
      "c.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(std::string(CheckClusterConfig(*config).message()),
              HasSubstr("cache_transceiver_config.suspect_after_ms: 50 is less than"));
  config->transceiver.suspect_after_ms = 120000;
  EXPECT_TRUE(CheckClusterConfig(*config).ok());
  config->hostname.clear();
  EXPECT_EQ(CheckClusterConfig(*config).message(), "hostname: empty");
}

TEST(ClusterConfig, ThePrefillSideVouchesByEstimate) {
  EXPECT_EQ(ParseClusterConfig("", "c.yaml")->speculation.verify, "auto");
  EXPECT_EQ(ParseClusterConfig("speculation: {verify: residual}\n", "c.yaml")->speculation.verify,
            "residual");
  EXPECT_FALSE(ParseClusterConfig("speculation: {verify: never}\n", "c.yaml").ok());
}

TEST(ClusterConfig, AnAnchorHasWhatItNeeds) {
  const auto check = [](const std::string& kv) {
    const auto config = ParseClusterConfig("model: m\nkv: {" + kv + "}\n", "/etc/lynx.yaml");
    EXPECT_TRUE(config.ok()) << config.status();
    ClusterConfig c = *config;
    c.context.urls = c.generation.urls = {"h:1"};
    c.generation.urls = {"h:2"};
    return std::string(CheckClusterConfig(c).message());
  };
  EXPECT_EQ(check("anchor: auto"), "");
  EXPECT_EQ(check("anchor: k3v2"), "");
  EXPECT_EQ(check("anchor: auto, anchor_table: widths.yaml"), "");
  EXPECT_EQ(ParseClusterConfig("kv: {anchor_table: w.yaml}", "/etc/lynx.yaml")->kv.anchor_table,
            "/etc/w.yaml");
  EXPECT_EQ(check("anchor: table"), "kv.anchor: table: kv.anchor_table is missing");
  for (const char* other : {"", ", anchor: k4v2", ", codec: int8"}) {
    EXPECT_EQ(check(std::string("anchor_table: w.yaml") + other), "");
  }
  EXPECT_EQ(check("codec: int8, anchor: auto"),
            "kv.anchor: auto: only codec planes can be cut, not int8");
  EXPECT_FALSE(ParseClusterConfig("kv: {anchor: k5v2}", "c.yaml").ok());
}

TEST(ClusterConfig, TheMemoryFractionHasTwoNames) {
  const auto both = ParseClusterConfig("kv: {memory_fraction: 0.5}\n", "c.yaml");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->context.gpu_memory_fraction, 0.5);
  EXPECT_EQ(both->generation.gpu_memory_fraction, 0.5);
  EXPECT_THAT(ToYaml(*both), HasSubstr("free_gpu_memory_fraction: 0.5"));
  EXPECT_EQ(Error("kv: {memory_fraction: 2}\n"), "c.yaml:1: kv.memory_fraction: 2 is not in 0..1");
  EXPECT_EQ(Error("kv: {memory_fraction: 0}\n"),
            "c.yaml:1: kv.memory_fraction: 0 leaves nothing: want more, at most 1");
  EXPECT_THAT(Error("kv_cache_config: {free_gpu_memory_fraction: 0.0}\n"), HasSubstr("nothing"));
  for (const std::string section : {"", "context_servers: ", "generation_servers: "}) {
    const std::string other = section.empty()
                                  ? "kv_cache_config: {free_gpu_memory_fraction: 0.5}"
                                  : section + "{kv_cache_config: {free_gpu_memory_fraction: 0.5}}";
    EXPECT_EQ(Error("kv: {memory_fraction: 0.5}\n" + other + "\n"),
              "c.yaml:1: kv.memory_fraction: is kv_cache_config.free_gpu_memory_fraction, which "
              "line 2 gives too");
  }
}

TEST(ClusterConfig, ResidentIsBf16ExactOr8Bit) {
  for (const std::string resident : {"bf16", "exact", "8bit"}) {
    const auto config = ParseClusterConfig("kv: {resident: " + resident + "}\n", "c.yaml");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->kv.resident, resident);
    EXPECT_THAT(ToYaml(*config), HasSubstr("resident: " + resident));
  }
  EXPECT_EQ(Error("kv: {resident: 4bit}\n"),
            "c.yaml:1: kv.resident: '4bit' is not one of bf16, exact, 8bit");
}

TEST(ClusterConfig, FilesThatItNamesMustBeThere) {
  ClusterConfig config;
  EXPECT_TRUE(CheckConfigFiles(config).ok());
  config.chat_template = LYNX_SOURCE_DIR "/README.md";
  EXPECT_TRUE(CheckConfigFiles(config).ok());
  config.kv.anchor_table = "/tmp";
  EXPECT_EQ(std::string(CheckConfigFiles(config).message()), "kv.anchor_table: /tmp is not a file");
}

TEST(ClusterConfig, PathsAreRelativeToTheFile) {
  const auto config = ParseClusterConfig("model: ../m.gguf\n", "/etc/lynx/c.yaml");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->model, "/etc/m.gguf");
}

TEST(ClusterConfig, ChecksAddressesAgainstTheirNumber) {
  auto config = ParseClusterConfig(
      "model: /m\ncontext_servers: {num_instances: 2, urls: [a:1]}\n"
      "generation_servers: {urls: [b:1]}\n",
      "c.yaml");
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(std::string(CheckClusterConfig(*config).message()),
              HasSubstr("context_servers.urls: 1 addresses for num_instances 2"));
  config->context.urls = {"a:1", "a"};
  EXPECT_THAT(std::string(CheckClusterConfig(*config).message()),
              HasSubstr("'a' is not host:port"));
  config->context.urls = {"a:1", "a:2"};
  EXPECT_TRUE(CheckClusterConfig(*config).ok());
}

TEST(ClusterConfig, ShippedFilesAreValid) {
  for (const char* name : {"cluster.yaml", "local.yaml"}) {
    const auto config = LoadClusterConfig(std::string(LYNX_SOURCE_DIR "/configs/") + name);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(CheckConfigFiles(*config).ok()) << CheckConfigFiles(*config);
  }
}

TEST(ClusterConfig, ReadsOneDocumentOfARegularFile) {
  EXPECT_EQ(Error("port: 1\n---\nport: 2\n"), "c.yaml:3: a second document");
  for (const char* path : {"/nowhere.yaml", "/tmp", "/dev/zero"}) {
    EXPECT_EQ(std::string(LoadClusterConfig(path).status().message()),
              std::string(path) + ": is not a file");
  }
}

TEST(ClusterConfig, Sizes) {
  EXPECT_EQ(*ParseSize("64"), 64);
  EXPECT_EQ(*ParseSize("512K"), 512 << 10);
  EXPECT_EQ(*ParseSize("1.5G"), int64_t{3} << 29);
  EXPECT_EQ(*ParseSize("2GiB"), int64_t{2} << 30);
  for (const char* bad : {"", "G", "-1", "1X", "1GG", "nan", "1e40"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace lynx
