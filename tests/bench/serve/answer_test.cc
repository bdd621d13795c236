// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/answer.h"

#include <gtest/gtest.h>

namespace lynx {
namespace {

AnswerRecord ReadAll(const std::string& bytes) {
  AnswerRecord record;
  AnswerReader reader(&record);
  reader.Push(bytes, 7);
  reader.Finish();
  return record;
}

std::string Event(const std::string& data) { return "data: " + data + "\n\n"; }
std::string Text(const std::string& text) {
  return Event(R"({"choices":[{"text":")" + text + R"("}]})");
}
const std::string kEnd = Event("[DONE]");

TEST(EventStreamTest, TheStandardsCornersAtEverySplit) {
  const std::string bytes =
      "\xEF\xBB\xBF"
      "data: one\n\n"
      ": a comment\n\n"
      "event: named\nid: 4\nretry: 10\ndata:two\n\n"
      "data: three\r\ndata:  and more\r\n\r\n"
      "data: four\r\r"
      "data\n\n"
      "nonsense\n\n"
      "data: [DONE]";
  const std::vector<std::string> want = {"one", "two", "three\n and more", "four", "", "[DONE]"};
  const auto cut = [&](size_t first, size_t second) {
    std::vector<std::string> got;
    EventStream stream([&](std::string_view data) { got.emplace_back(data); });
    const std::string_view all = bytes;
    EXPECT_TRUE(stream.Push(all.substr(0, first)).ok());
    EXPECT_TRUE(stream.Push(all.substr(first, second - first)).ok());
    EXPECT_TRUE(stream.Push(all.substr(second)).ok());
    stream.Finish();
    return got;
  };
  for (size_t i = 0; i <= bytes.size(); ++i) {
    for (size_t j = i; j <= bytes.size(); ++j) ASSERT_EQ(cut(i, j), want) << i << ", " << j;
  }
}

TEST(EventStreamTest, AnEndlessLineIsRefused) {
  int num_events = 0;
  EventStream stream([&](std::string_view) { ++num_events; });
  const std::string piece(1 << 20, 'x');
  absl::Status status;
  for (int i = 0; i < 20; ++i) status = stream.Push(piece);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(stream.Push("\n\ndata: late\n\n").ok());
  stream.Finish();
  EXPECT_EQ(num_events, 0);
}

TEST(AnswerReaderTest, EachEventHasTheTimeOfTheBytesThatCompleteIt) {
  const std::string bytes =
      Text("a") + Text("b\\u00e9") + Text("") +
      Event(R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}})") + kEnd;
  AnswerRecord record;
  AnswerReader reader(&record);
  int64_t now = 0;
  for (const char c : bytes) reader.Push(std::string_view(&c, 1), ++now);
  reader.Finish();
  const int64_t one = static_cast<int64_t>(Text("a").size());
  const int64_t two = one + static_cast<int64_t>(Text("b\\u00e9").size());
  const int64_t three = two + static_cast<int64_t>(Text("").size());
  EXPECT_EQ(record.event_ns, (std::vector<int64_t>{one, two, three}));
  EXPECT_EQ(record.text, "ab\xC3\xA9");
  EXPECT_EQ(record.prompt_tokens, 5);
  EXPECT_EQ(record.output_tokens, 3);
  EXPECT_EQ(record.error, "");
}

TEST(AnswerReaderTest, ARoleAloneIsNoTokenAndTheLastEmptyDeltaIsOne) {
  const auto delta = [](const std::string& members, const std::string& finish) {
    return Event(R"({"choices":[{"delta":{)" + members + R"(},"finish_reason":)" + finish + "}]}");
  };
  const AnswerRecord record =
      ReadAll(delta(R"("role":"assistant","content":"")", "null") +
              delta(R"("role":"assistant","content":null,"tool_calls":[])", "null") +
              delta(R"("role":"assistant","content":"x")", "null") +
              delta(R"("reasoning":"y","reasoning_content":"y")", "null") +
              delta(R"("reasoning_content":"z")", "null") + delta("", R"("stop")"));
  EXPECT_EQ(record.event_ns.size(), 4u);
  EXPECT_EQ(record.text, "xyz");
  EXPECT_EQ(record.output_tokens, 4);  // the events, as the server does not say
  EXPECT_EQ(record.error, "");         // a finish_reason is an end
}

TEST(AnswerReaderTest, ToleratesWhatPeersAdd) {
  const AnswerRecord record = ReadAll(
      ": ping\n\n" + Event(R"({"choices":[],"prompt_filter_results":[{}]})") +
      Event(R"({"choices":[{"text":"a","logprobs":null}],"timings":{"n":1},)"
            R"("usage":{"completion_tokens":1}})") +
      Event(R"({"choices":[{"text":7}],"usage":null,"error":null})") +
      Event(R"({"choices":[{"text":"b"}],"usage":{"completion_tokens":2,"prompt_tokens":-1}})") +
      kEnd + Event("garbage after the end"));
  EXPECT_EQ(record.error, "");
  EXPECT_EQ(record.event_ns.size(), 3u);
  EXPECT_EQ(record.text, "ab");
  EXPECT_EQ(record.output_tokens, 2);
  EXPECT_EQ(record.prompt_tokens, 0);
}

TEST(AnswerReaderTest, WhatIsMissingIsAnError) {
  EXPECT_EQ(ReadAll("").error, "the answer has no event with choices");
  EXPECT_EQ(ReadAll(kEnd).error, "the answer has no event with choices");
  EXPECT_EQ(ReadAll(R"({"choices":[{"text":"not a stream"}]})").error,
            "the answer has no event with choices");
  EXPECT_EQ(ReadAll(Text("a")).error, "the stream ended without [DONE] or a finish_reason");
  EXPECT_EQ(ReadAll(Text("a") + Event("{\"cho")).error, "an event is no JSON object: {\"cho");
  EXPECT_EQ(ReadAll(Text("a") + Event("[1]") + kEnd).error, "an event is no JSON object: [1]");
  EXPECT_EQ(ReadAll(Text("a") + Event(R"({"error":{"message":"boom","code":500}})") + kEnd).error,
            "boom");
  EXPECT_EQ(ReadAll(Event(R"({"error":"plain"})")).error, "plain");
  EXPECT_EQ(ReadAll(Event(R"({"error":{"code":3}})")).error, R"({"code":3})");
}

TEST(RefusalMessageTest, TheBodysWordsOrTheStatus) {
  EXPECT_EQ(RefusalMessage(429, R"({"error":{"message":"busy"}})"), "busy");
  EXPECT_EQ(RefusalMessage(502, "<html>"), "HTTP 502");
  EXPECT_EQ(RefusalMessage(500, ""), "HTTP 500");
}

}  // namespace
}  // namespace lynx
