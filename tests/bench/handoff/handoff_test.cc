// SPDX-License-Identifier: Apache-2.0
// The parts of `lynx bench handoff` that need no daemon: options, answers, cells.
#include "bench/handoff/handoff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "bench/handoff/grid.h"
#include "bench/handoff/placement.h"
#include "bench/handoff/report.h"
#include "bench/handoff/sample.h"
#include "tests/model/tiny_model_paths.h"
#include "tests/temp_directory.h"

namespace lynx {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(HandoffGridTest, OnlyPlanesHaveAChoice) {
  const auto grid = MakeHandoffGrid({.link = {"1gbit", "none"},
                                     .rtt = {"0", "1ms"},
                                     .prompt_tokens = {1024},
                                     .codecs = {"int8", "planes"},
                                     .verify = {"source", "hold"}});
  ASSERT_TRUE(grid.ok()) << grid.status();
  EXPECT_THAT(grid->variants, ElementsAre(HandoffVariant{"int8", "default", "residual"},
                                          HandoffVariant{"planes", "default", "source"},
                                          HandoffVariant{"planes", "default", "hold"}));
  EXPECT_EQ(grid->links.size(), 3u);  // loopback has one round trip
  EXPECT_EQ(grid->num_cells(), 3 * 1 * 2 * 3);
  EXPECT_TRUE(grid->shaped());
}

TEST(HandoffGridTest, WhatIsUnknownIsNamed) {
  EXPECT_THAT(MakeHandoffGrid({.codecs = {"int7"}}).status().message(), HasSubstr("'int7'"));
  EXPECT_THAT(MakeHandoffGrid({.verify = {"never"}}).status().message(), HasSubstr("'never'"));
  EXPECT_THAT(MakeHandoffGrid({.busy = "lazy"}).status().message(), HasSubstr("'lazy'"));
  const std::string anchor(
      MakeHandoffGrid({.codecs = {"int8"}, .anchor = {"k9v2"}}).status().message());
  EXPECT_THAT(anchor, HasSubstr("--anchor: "));
  EXPECT_THAT(anchor, HasSubstr("'k9v2'"));
  EXPECT_THAT(MakeHandoffGrid({.anchor = {"table"}}).status().message(),
              HasSubstr("--anchor-table"));
  EXPECT_THAT(MakeHandoffGrid({.codecs = {}}).status().message(), HasSubstr("empty"));
}

TEST(HandoffPlacementTest, EachDaemonHasCoresOfItsOwn) {
  const auto two = PlaceDaemons({3, 5, 7, 8, 9}, 2);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(two->prefill, ElementsAre(3, 5));
  EXPECT_THAT(two->decode, ElementsAre(7, 8));
  const auto all = PlaceDaemons({3, 5}, 0);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->prefill, IsEmpty());
  EXPECT_THAT(all->decode, IsEmpty());
  EXPECT_THAT(std::string(PlaceDaemons({3, 5, 7}, 2).status().message()),
              HasSubstr("--own-cores: 2 cores for each of two daemons, but there are 3"));
}

TEST(HandoffBenchTest, FilesAreCheckedBeforeTheCorpusIsRead) {
  const TempDirectory folder;
  BenchHandoffOptions options{.link = {"none"}, .corpus = folder / "none"};
  options.config.model = kTinyLlama;
  options.json = folder / "no/such/folder";
  EXPECT_THAT(std::string(RunBenchHandoff(options).message()), HasSubstr("--json: "));
  options.config.kv.anchor_table = folder / "widths.yaml";
  std::ofstream(options.config.kv.anchor_table) << "key: [2]\nvalue: [9]\n";
  EXPECT_THAT(std::string(RunBenchHandoff(options).message()), HasSubstr("--anchor-table: "));
  options.config.kv.anchor_table = "";
  options.json = "";
  EXPECT_THAT(std::string(RunBenchHandoff(options).message()), HasSubstr("--corpus: "));
}

// Token 1 at 100 ms; tokens 2 and 3 drafted at 110 and 130, final at 150; 4 final at 170.
constexpr char kAnswer[] = R"({
  "choices": [{"text": "it is 123", "token_ids": [5, 6, 7, 8]}],
  "usage": {"lynx": {
    "events_ms": {"first_token": 100, "anchor_landed": 105, "target_landed": 140,
                  "refined": 145, "verified": 150},
    "token_ms": [100, 150, 150, 170], "provisional_ms": [100, 110, 130, 170],
    "longest_stall_ms": 50, "stage_bytes": {"anchor": 30, "residual": 40, "exact": 20},
    "drafted": 3, "accepted": 2, "handoffs": 1, "verify": "residual", "verify_rounds": 0,
    "verified_by_source": 0}}})";

TEST(HandoffSampleTest, TimesCountFromTheFirstToken) {
  const auto sample = ParseHandoffAnswer(kAnswer);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->verified_s, ElementsAre(0, DoubleEq(0.05), DoubleEq(0.05), DoubleEq(0.07)));
  EXPECT_THAT(sample->provisional_s,
              ElementsAre(0, DoubleEq(0.01), DoubleEq(0.03), DoubleEq(0.07)));
  EXPECT_THAT(sample->ttft_s, DoubleEq(0.1));
  EXPECT_THAT(sample->ttst_s, DoubleEq(0.15));
  EXPECT_THAT(sample->anchor_s, DoubleEq(0.005));
  EXPECT_THAT(sample->landed_s, DoubleEq(0.04));
  EXPECT_THAT(sample->refined_s, DoubleEq(0.045));
  EXPECT_THAT(sample->judged_s, DoubleEq(0.05));
  EXPECT_THAT(ParseHandoffAnswer("{\"choices\": []}").status().message(),
              HasSubstr("the gateway's answer"));
}

TEST(HandoffReportTest, ACellSumsUpItsRuns) {
  HandoffSample reference = ParseHandoffAnswer(kAnswer).value();
  HandoffSample other = reference;
  other.tokens = {5, 6, 9, 8};
  other.text = "it is not";
  other.verified_s[1] = 0.1;
  const HandoffCell cell{.variant = {"planes", "default", "auto"},
                         .link = {.name = "none", .shaped = false, .spec = {}},
                         .measured = {},
                         .prompt_tokens = 300,
                         .busy = true,
                         .runs = {{reference, &reference, "123", {{"encode_exposed", 0.25}}},
                                  {other, &reference, "123", {{"encode_exposed", 0.75}}}}};
  const auto json = CellJson(cell);
  EXPECT_EQ(json["n"], 2);
  EXPECT_TRUE(json["link_bps"].is_null());
  EXPECT_EQ(json["t_verified_s"]["1"], 0.075);
  EXPECT_EQ(json["spread"]["t_verified_s"]["1"], 0.666667);
  EXPECT_FALSE(json["t_verified_s"].contains("8"));  // the answers are shorter
  EXPECT_EQ(json["revoked"], 1);
  EXPECT_EQ(json["equal_to_bf16"], 0.5);
  EXPECT_EQ(json["first_divergence"].dump(), "[null,2]");
  EXPECT_EQ(json["needles"]["found"], 1);
  EXPECT_EQ(json["needles"]["found_by_bf16"], 2);
  EXPECT_EQ(json["exposed_s"]["encode"], 0.5);
  EXPECT_EQ(json["exposed_s"]["transfer"], 0.04);
}

}  // namespace
}  // namespace lynx
