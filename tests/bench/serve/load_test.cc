// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "bench/serve/serve.h"
#include "tests/bench/serve/fake_server.h"

namespace lynx {
namespace {

using Json = nlohmann::json;

std::string TextEvent(const std::string& text) {
  return "data: " + Json{{"choices", {{{"index", 0}, {"text", text}}}}}.dump() + "\n\n";
}
std::string UsageEvent(int prompt, int completion) {
  const Json usage = {{"prompt_tokens", prompt}, {"completion_tokens", completion}};
  return "data: " + Json{{"choices", Json::array()}, {"usage", usage}}.dump() + "\n\n";
}
const std::string kDone = "data: [DONE]\n\n";

// Repeats the prompt, letter by letter.
FakeReply Echo(const Json& body) {
  std::vector<std::string> pieces;
  const std::string prompt = body["prompt"];
  for (const char c : prompt) pieces.push_back(TextEvent(std::string(1, c)));
  pieces.push_back(UsageEvent(3, static_cast<int>(prompt.size())));
  pieces.push_back(kDone);
  return StreamReply(pieces);
}

std::vector<ServePrompt> Prompts(const std::vector<std::string>& texts) {
  std::vector<ServePrompt> prompts;
  for (const std::string& text : texts) prompts.push_back({text, 1, 16});
  return prompts;
}

ServeTarget Target(const FakeOpenAiServer& server) {
  ServeTarget target;
  target.name = "fake";
  target.request.host = "127.0.0.1";
  target.request.port = server.port();
  target.request.method = "POST";
  target.request.target = "/v1/completions";
  target.request.keep_alive = true;
  return target;
}

LoadResult Ask(const ServeTarget& target, const std::vector<ServePrompt>& prompts,
               int max_concurrency = 0) {
  return RunLoad(target, {.prompts = prompts,
                          .due_ns = std::vector<int64_t>(prompts.size()),
                          .max_concurrency = max_concurrency});
}

TEST(ServeLoadTest, AnswersAreReadInOrderOverConnectionsThatStayOpen) {
  FakeOpenAiServer server([](const std::string&, const Json& body) { return Echo(body); });
  const LoadResult load = Ask(Target(server), Prompts({"abc", "de", "fghi"}), 1);
  ASSERT_EQ(load.answers.size(), 3u);
  EXPECT_EQ(server.num_connections(), 1);
  int64_t before = 0;
  for (const AnswerRecord& answer : load.answers) {
    EXPECT_EQ(answer.error, "");
    EXPECT_EQ(answer.http_status, 200);
    EXPECT_EQ(answer.prompt_tokens, 3);
    EXPECT_EQ(answer.output_tokens, static_cast<int64_t>(answer.text.size()));
    EXPECT_EQ(answer.event_ns.size(), answer.text.size());
    EXPECT_LE(answer.due_ns, answer.started_ns);
    EXPECT_LE(before, answer.started_ns);
    EXPECT_LE(answer.started_ns, answer.event_ns.front());
    EXPECT_TRUE(std::is_sorted(answer.event_ns.begin(), answer.event_ns.end()));
    before = answer.event_ns.back();
  }
  EXPECT_EQ(load.answers[2].text, "fghi");
  EXPECT_LE(before - load.answers[0].due_ns, load.duration_ns);
}

TEST(ServeLoadTest, NeverMoreAtATimeThanAllowed) {
  std::mutex mutex;
  int running = 0, peak = 0;
  FakeOpenAiServer server([&](const std::string&, const Json& body) {
    {
      std::lock_guard lock(mutex);
      peak = std::max(peak, ++running);
    }
    std::this_thread::yield();
    FakeReply reply = Echo(body);
    std::lock_guard lock(mutex);
    --running;
    return reply;
  });
  const LoadResult load = Ask(Target(server), Prompts(std::vector<std::string>(40, "xy")), 3);
  EXPECT_EQ(load.answers.size(), 40u);
  EXPECT_LE(peak, 3);
  EXPECT_LE(server.num_connections(), 3);
}

TEST(ServeLoadTest, EveryKindOfFailureIsCountedWithItsReason) {
  FakeOpenAiServer server([](const std::string&, const Json& body) {
    const std::string prompt = body["prompt"];
    if (prompt == "refuse") {
      return PlainReply("429 Too Many Requests", R"({"error":{"message":"busy"}})");
    }
    if (prompt == "html") return PlainReply("502 Bad Gateway", "<html>");
    if (prompt == "cut") return StreamReply({TextEvent("a")}, /*is_complete=*/false);
    if (prompt == "early") return StreamReply({TextEvent("a")});
    if (prompt == "error") return StreamReply({TextEvent("a"), "data: {\"error\":\"boom\"}\n\n"});
    if (prompt == "hang up") return FakeReply{{}, true};
    if (prompt == "no http") return FakeReply{{"garbage\r\n\r\n"}, true};
    return Echo(body);
  });
  const LoadResult load =
      Ask(Target(server),
          Prompts({"refuse", "html", "cut", "early", "error", "hang up", "no http", "fine"}), 1);
  std::vector<std::string> errors;
  for (const AnswerRecord& answer : load.answers) errors.push_back(answer.error);
  using testing::HasSubstr;
  EXPECT_THAT(errors,
              testing::ElementsAre("busy", "HTTP 502", HasSubstr("127.0.0.1"),
                                   "the stream ended without [DONE] or a finish_reason", "boom",
                                   HasSubstr("end of stream"), HasSubstr("127.0.0.1"), ""));
  EXPECT_EQ(load.answers[0].http_status, 429);
  EXPECT_EQ(load.answers[5].http_status, 0);
}

// As llama-server does, which promises to keep the connection and does not.
TEST(ServeLoadTest, AConnectionThatEndsUnderTheNextRequestIsNoFailureOfTheServer) {
  std::multiset<std::string> seen;
  FakeOpenAiServer server([&](const std::string&, const Json& body) {
    const std::string prompt = body["prompt"];
    seen.insert(prompt);
    const bool hangs_up = prompt == "never" || (prompt == "second" && seen.count(prompt) == 1);
    return hangs_up ? FakeReply{{}, true} : Echo(body);
  });
  const LoadResult load = Ask(Target(server), Prompts({"first", "second", "never", "last"}), 1);
  EXPECT_EQ(load.answers[1].error, "");
  EXPECT_EQ(load.answers[1].text, "second");
  EXPECT_EQ(load.answers[1].event_ns.size(), 6u);
  EXPECT_THAT(load.answers[2].error, testing::HasSubstr("end of stream"));  // twice is a failure
  EXPECT_EQ(load.answers[3].error, "");
  EXPECT_EQ(seen,
            (std::multiset<std::string>{"first", "last", "never", "never", "second", "second"}));
}

TEST(ServeLoadTest, ServersThatCloseAfterEachAnswerAreServedWithoutFailures) {
  FakeOpenAiServer server([](const std::string&, const Json& body) {
    FakeReply reply = Echo(body);
    reply.close = true;
    return reply;
  });
  const LoadResult load = Ask(Target(server), Prompts(std::vector<std::string>(60, "xyz")), 4);
  for (const AnswerRecord& answer : load.answers) EXPECT_EQ(answer.error, "");
  EXPECT_GE(server.num_connections(), 60);
}

TEST(ServeLoadTest, NobodyListens) {
  int port;
  {
    FakeOpenAiServer server([](const std::string&, const Json& body) { return Echo(body); });
    port = server.port();
  }
  ServeTarget target;
  target.request.host = "127.0.0.1";
  target.request.port = port;
  const LoadResult load = Ask(target, Prompts({"a", "b"}));
  EXPECT_THAT(load.answers[1].error, testing::HasSubstr("refused"));
}

TEST(ServeLoadTest, RequestsWaitForTheirTimeAndEndWithTheRun) {
  FakeOpenAiServer server([](const std::string&, const Json& body) { return Echo(body); });
  const ServeTarget target = Target(server);
  const auto prompts = Prompts({"a", "b", "c"});
  LoadPlan plan = {.prompts = prompts, .due_ns = {0, 20'000'000, 40'000'000}};
  LoadResult load = RunLoad(target, plan);
  EXPECT_GE(load.duration_ns, 40'000'000);
  for (const AnswerRecord& answer : load.answers) EXPECT_GE(answer.started_ns, answer.due_ns);
  plan.due_ns = {0, 20'000'000, 3'600'000'000'000};
  plan.prompts = plan.prompts.first(2);
  plan.max_duration_ns = 10'000'000;
  EXPECT_EQ(RunLoad(target, plan).answers.size(), 1u);
}

TEST(ServeLoadTest, BodiesOfBothApis) {
  ServeTarget target;
  target.model = "m";
  target.ignore_eos = true;
  target.temperature = 0;
  target.extra_body = {{"top_k", 1}, {"stream", false}};
  const ServePrompt prompt = {"h\"i\xFF", 1, 16};
  EXPECT_EQ(Json::parse(RequestBody(target, prompt)), Json::parse(R"({
      "model": "m", "prompt": "h\"i\ufffd", "max_tokens": 16, "stream": false, "top_k": 1,
      "stream_options": {"include_usage": true}, "ignore_eos": true, "temperature": 0.0})"));
  ServeTarget chat;
  chat.is_chat = true;
  EXPECT_EQ(Json::parse(RequestBody(chat, {"hi", 1, 9})), Json::parse(R"({
      "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9,
      "stream": true, "stream_options": {"include_usage": true}})"));
}

// The command itself.
class BenchServeTest : public testing::Test {
 protected:
  BenchServeTest()
      : server_([this](const std::string& path, const Json& body) {
          if (path == "/v1/models") return PlainReply("200 OK", R"({"data":[{"id":"tiny"}]})");
          std::lock_guard lock(mutex_);
          models_.insert(body["model"].get<std::string>());
          prompts_.push_back(body["prompt"]);
          return Echo({{"prompt", prompts_.back().substr(0, 4) + suffix_}});
        }) {
    options_.base_url = server_.url();
    options_.num_prompts = 6;
    options_.random_input_len = 5;
    options_.random_output_len = 4;
    options_.max_concurrency = 2;
    options_.save_detailed = true;
  }
  std::string Run(absl::StatusCode want) {
    testing::internal::CaptureStdout();
    const absl::Status status = RunBenchServe(options_);
    EXPECT_EQ(status.code(), want) << status;
    return testing::internal::GetCapturedStdout();
  }
  static Json Read(const std::string& path) {
    std::ifstream in(path);
    return Json::parse(in);
  }

  std::mutex mutex_;
  std::set<std::string> models_;
  std::vector<std::string> prompts_;
  std::string suffix_;
  BenchServeOptions options_;
  FakeOpenAiServer server_;
};

TEST_F(BenchServeTest, PrintsAndSavesVllmsFields) {
  options_.save_result = testing::TempDir() + "bench_serve.json";
  options_.goodput = {"ttft:60000", "e2el:0"};
  options_.request_rate = 1000;
  options_.metric_percentiles = {50, 99.9};
  const std::string text = Run(absl::StatusCode::kOk);
  for (const char* field :
       {"============ Serving Benchmark Result ============\n",
        "Successful requests:                     6         \n",
        "Failed requests:                         0         \n",
        "Maximum request concurrency:             2         \n",
        "Request rate configured (RPS):           1000.00   \n",
        "Benchmark duration (s):   ", "Total input tokens:                      18        \n",
        "Total generated tokens:                  24        \n",
        "Request throughput (req/s):   ", "Request goodput (req/s):                 0.00      \n",
        "Output token throughput (tok/s):   ", "Peak output token throughput (tok/s):   ",
        "Peak concurrent requests:   ", "Total token throughput (tok/s):   ",
        "---------------Time to First Token----------------\nMean TTFT (ms):   ",
        "-----Time per Output Token (excl. 1st token)------\nMean TPOT (ms):   ",
        "---------------Inter-token Latency----------------\nMean ITL (ms):   ",
        "\nP50 TTFT (ms):   ", "\nP99.9 ITL (ms):   "}) {
    EXPECT_THAT(text, testing::HasSubstr(field));
  }
  EXPECT_EQ(models_, std::set<std::string>{"tiny"});
  const Json result = Read(options_.save_result);
  for (const char* key : {"date",
                          "backend",
                          "endpoint_type",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "latencies",
                          "start_times",
                          "queue_times",
                          "generated_texts",
                          "errors",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "rtfx",
                          "mean_ttft_ms",
                          "median_tpot_ms",
                          "std_itl_ms",
                          "p50_ttft_ms",
                          "p99.9_itl_ms"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_EQ(result["output_lens"], Json({4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(result["itls"][5].size(), 3u);
}

TEST_F(BenchServeTest, AnswersAreComparedWithAnEarlierRun) {
  options_.distinct_prompts = 2;
  options_.save_result = testing::TempDir() + "bench_serve_solo.json";
  Run(absl::StatusCode::kOk);
  EXPECT_EQ(std::set<std::string>(prompts_.begin() + 1, prompts_.end()).size(), 2u);
  options_.expect = options_.save_result;
  options_.save_result = "";
  EXPECT_THAT(Run(absl::StatusCode::kOk),
              testing::HasSubstr("Answers compared:                        6 "));
  suffix_ = "?";
  EXPECT_THAT(Run(absl::StatusCode::kDataLoss),
              testing::HasSubstr("Answers that differ:                     6 "));
  options_.expect = LYNX_SOURCE_DIR "/README.md";
  Run(absl::StatusCode::kInvalidArgument);
}

TEST_F(BenchServeTest, SideBySidePrintsRoundsMediansAndRatios) {
  options_.peers = {"peer=" + server_.url()};
  options_.label = "own";
  options_.percentile_metrics = {"e2el"};
  std::vector<Json> lines;
  std::istringstream text(Run(absl::StatusCode::kOk));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 10u + 2 + 6);
  EXPECT_EQ(lines[0]["server"], "own");
  EXPECT_EQ(lines[2]["server"], "peer");  // the second round begins with the other
  EXPECT_EQ(lines[2]["round"], 2);
  EXPECT_EQ(lines[11]["kind"], "server");
  EXPECT_EQ(lines[11]["rounds"], 5);
  EXPECT_TRUE(lines[11]["p99_e2el_ms"].contains("spread"));
  EXPECT_EQ(lines[12]["metric"], "request_throughput");
  EXPECT_EQ(lines[12]["better"], "higher");
  EXPECT_EQ(lines[17]["metric"], "p99_e2el_ms");
  EXPECT_EQ(lines[17]["better"], "lower");
  // A test request and two of warm-up for each server, then 30 prompts that each server gets once.
  ASSERT_EQ(prompts_.size(), 2u * 3 + 2 * 30);
  EXPECT_EQ(std::set<std::string>(prompts_.begin() + 6, prompts_.end()).size(), 30u);
}

TEST_F(BenchServeTest, WrongArgumentsAreSaidAtOnce) {
  for (const std::string goal : {"ttft", "ttft:", "itl:5", "tpot:-1", "e2el:x", "ttft:nan"}) {
    options_.goodput = {goal};
    Run(absl::StatusCode::kInvalidArgument);
  }
  options_.goodput = {};
  options_.extra_body = "[1]";
  Run(absl::StatusCode::kInvalidArgument);
  options_.extra_body = "";
  for (const std::string peer : {"x", "=http://a:1", "x=https://a:1", "x=http://a:0", "x=a",
                                 "lynx=http://a:1"}) {  // the label of --base-url's server
    options_.peers = {peer};
    Run(absl::StatusCode::kInvalidArgument);
  }
  options_.peers = {"x=http://a:1", "x=http://a:2"};
  Run(absl::StatusCode::kInvalidArgument);
  options_.peers = {"x=" + server_.url()};
  options_.save_result = testing::TempDir() + "bench_serve_never.json";
  Run(absl::StatusCode::kInvalidArgument);
  options_.peers = {};
  options_.save_result = "";
  options_.expect = testing::TempDir();
  Run(absl::StatusCode::kInvalidArgument);
  options_.expect = "";
  options_.base_url = "foo";
  EXPECT_THAT(std::string(RunBenchServe(options_).message()),
              testing::HasSubstr("--base-url: 'foo'"));
  options_.base_url = server_.url();
  options_.request_rate = std::nan("");
  Run(absl::StatusCode::kInvalidArgument);
  options_.request_rate = 1;
  options_.dataset_name = "prompts";
  options_.dataset_path = "/nowhere";
  Run(absl::StatusCode::kNotFound);
  EXPECT_TRUE(prompts_.empty());
}

}  // namespace
}  // namespace lynx
