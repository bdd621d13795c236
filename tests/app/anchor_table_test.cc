// SPDX-License-Identifier: Apache-2.0
#include "app/anchor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_directory.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHash = 0xabc;
constexpr char kTable[] = "key: [2, 3]\nvalue: [4, 2]\n";

class AnchorTableTest : public testing::Test {
 protected:
  AnchorTableTest() {
    config_.cache_dir = folder_.path();
    kept_ = KeptAnchorTable(config_, kHash);
    fs::create_directories(fs::path(kept_).parent_path());
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  absl::StatusOr<std::optional<AnchorWidths>> Find() { return FindAnchorTable(config_, kHash, 2); }
  // Whether a table is found, which must not be an error.
  bool Finds() {
    const auto found = Find();
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && found->has_value();
  }

  const TempDirectory folder_;
  ClusterConfig config_;
  std::string kept_;
};

TEST_F(AnchorTableTest, WhatCalibrateHasKeptIsFound) {
  EXPECT_EQ(kept_, (folder_ / "anchors" / "0000000000000abc.yaml").string());
  EXPECT_FALSE(Finds());
  Write(kept_, kTable);
  for (const char* anchor : {"default", "auto", "k4v2", "target"}) {
    config_.kv.anchor = anchor;
    EXPECT_EQ(Finds(), anchor == std::string("default") || anchor == std::string("auto")) << anchor;
  }
  config_.kv.anchor = "default";
  EXPECT_EQ((*Find())->bits, (std::vector<int>{2, 4, 3, 2}));
  EXPECT_FALSE(FindAnchorTable(config_, kHash + 1, 2)->has_value()) << "of another model";
  config_.cache_dir = "off";
  EXPECT_FALSE(Finds());
}

TEST_F(AnchorTableTest, ADamagedKeptTableIsNone) {
  for (const char* text :
       {"", "key: [2]\nvalue: [4]\n", "key: [2, 9]\nvalue: [4, 2]\n", "\x01[{"}) {
    Write(kept_, text);
    EXPECT_FALSE(Finds()) << text;
  }
  fs::remove(kept_);
  fs::create_directory(kept_);
  EXPECT_FALSE(Finds());
}

TEST_F(AnchorTableTest, TheConfiguredTableComesFirstAndMustBeGood) {
  Write(kept_, kTable);
  config_.kv.anchor_table = folder_ / "other.yaml";
  Write(config_.kv.anchor_table, "key: [4, 4]\nvalue: [4, 4]\n");
  EXPECT_EQ((*Find())->bits, std::vector<int>(4, 4));
  Write(config_.kv.anchor_table, "key: [4, 4, 4]\nvalue: [4, 4, 4]\n");
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Find().status().message()),
              testing::HasSubstr("other.yaml: key: want a list of 2 numbers"));
}

}  // namespace
}  // namespace lynx
