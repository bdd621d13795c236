// SPDX-License-Identifier: Apache-2.0
#include "gateway/generation_session.h"

#include "core/clock.h"
#include "gtest/gtest.h"
#include "tests/gateway/fake_generator.h"
#include "tests/gateway/tiny_text.h"

namespace lynx {
namespace {

constexpr int kMaxModelLen = 256;

// Runs a request body against a scripted engine, without HTTP.
class GenerationSessionTest : public testing::Test {
 protected:
  GenerationPlan Plan(const std::string& body) {
    RequestRules rules;
    rules.served_model_names = {"tiny"};
    rules.eos_ids = {2};
    rules.vocab_size = tokenizer_->vocab_size();
    rules.max_model_len = kMaxModelLen;
    RequestBody parsed;
    OpenAiRequest request;
    MaybeError error = ParseBody(body, rules.limits, &parsed);
    if (!error) error = ParseOpenAiRequest(api_, parsed, rules, &request);
    GenerationPlan plan;
    if (!error) {
      error = PlanGeneration(std::move(request), MakeTextModel(*tokenizer_, template_.get()), rules,
                             "abc", &plan);
    }
    EXPECT_FALSE(error) << error->message;
    plan.created_s = 1;
    plan.arrival_ns = MonotonicNs();
    return plan;
  }

  std::unique_ptr<GenerationSession> Start(const std::string& body) {
    return std::make_unique<GenerationSession>(Plan(body),
                                               SessionContext{.generator = generator_,
                                                              .tokenizer = *tokenizer_,
                                                              .metrics = *metrics_,
                                                              .settle_timeout = settle_timeout_,
                                                              .request_timeout = request_timeout_},
                                               [this] { ++num_wakeups_; });
  }

  Json Whole(const std::string& body) {
    auto session = Start(body);
    GenerationSession::Step step = session->Advance();
    EXPECT_TRUE(step.done && step.response);
    return Json::parse(step.response->body);
  }

  Api api_ = kCompletionsApi;
  const Tokenizer* tokenizer_ = &TinyTokenizer();
  std::unique_ptr<ChatTemplate> template_ =
      *ChatTemplate::Create("{{ messages[0].content }}", nullptr, nullptr);
  std::chrono::nanoseconds settle_timeout_ = std::chrono::hours(1);
  std::chrono::nanoseconds request_timeout_{0};
  FakeGenerator generator_;
  std::unique_ptr<GatewayMetrics> metrics_ = GatewayMetrics::Create("tiny", kMaxModelLen, false);
  int num_wakeups_ = 0;
};

EngineOutput WithLogprobs(EngineOutput output, int num_top) {
  for (TokenOutput& token : output.tokens) {
    for (int i = 0; i < num_top; ++i) {
      token.top.push_back(
          {.id = token.id + i, .logprob = -0.5f - static_cast<float>(i), .rank = i + 1});
    }
  }
  return output;
}

TEST_F(GenerationSessionTest, BytesOfAStream) {
  auto session = Start(R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_TRUE(session->Advance().sse.empty());
  generator_.Send(0, Tokens(ByteIds("A")));
  EXPECT_EQ(num_wakeups_, 1);
  EXPECT_EQ(session->Advance().sse,
            "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"logprobs\":null,"
            "\"stop_reason\":null,\"text\":\"A\"}],\"created\":1,\"id\":\"cmpl-abc\","
            "\"model\":\"tiny\",\"object\":\"text_completion\",\"system_fingerprint\":null,"
            "\"usage\":null}\n\n");
  generator_.Send(0, Finish(FinishReason::kStop, {2}));
  const GenerationSession::Step step = session->Advance();
  EXPECT_TRUE(step.done);
  const std::string expected_usage = "\"usage\":{\"completion_tokens\":2,\"prompt_tokens\":" +
                                     std::to_string(generator_.WaitForCall(0).prompt_ids.size()) +
                                     ",\"prompt_tokens_details\":{\"cached_tokens\":0}";
  EXPECT_TRUE(step.sse.starts_with(
      "data: {\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"logprobs\":null,"
      "\"stop_reason\":null,\"text\":\"\"}]"))
      << step.sse;
  EXPECT_NE(step.sse.find("data: {\"choices\":[],"), std::string::npos);
  EXPECT_NE(step.sse.find(expected_usage), std::string::npos) << step.sse;
  EXPECT_TRUE(step.sse.ends_with("}\n\ndata: [DONE]\n\n"));
}

TEST_F(GenerationSessionTest, NoEmptyDeltaWhileTextIsHeld) {
  auto session = Start(R"({"prompt":"hi","stream":true,"stop":"BC"})");
  generator_.Send(0, Tokens(ByteIds("B")));
  EXPECT_TRUE(session->Advance().sse.empty());
  generator_.Send(0, Tokens(ByteIds("D")));
  EXPECT_NE(session->Advance().sse.find("\"text\":\"BD\""), std::string::npos);
  generator_.Send(0, Tokens(ByteIds("BCx")));
  const GenerationSession::Step step = session->Advance();
  EXPECT_TRUE(step.done);
  EXPECT_NE(step.sse.find("\"stop_reason\":\"BC\""), std::string::npos);
  EXPECT_EQ(step.sse.find("\"text\":\"B\""), std::string::npos);
  EXPECT_TRUE(generator_.WaitForDrop(0));  // the engine is told to stop
}

TEST_F(GenerationSessionTest, SamplesHaveSeedsOfTheirOwnAndTheirPlace) {
  generator_.set_script([](const Request& request) {
    return std::vector{
        Finish(FinishReason::kLength, ByteIds(request.sampling.seed % 2 == 0 ? "e" : "o"))};
  });
  const Json answer = Whole(R"({"prompt":["a","b"],"n":2,"seed":10,"max_tokens":1})");
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][static_cast<size_t>(i)]["index"], i);
    EXPECT_EQ(answer["choices"][static_cast<size_t>(i)]["text"], i % 2 == 0 ? "e" : "o");
    const Request request = generator_.WaitForCall(static_cast<size_t>(i));
    EXPECT_EQ(request.sampling.seed, 10u + static_cast<uint64_t>(i % 2));
  }
  EXPECT_NE(generator_.WaitForCall(0).prompt_ids, generator_.WaitForCall(2).prompt_ids);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
}

TEST_F(GenerationSessionTest, WithoutASeedItIsRandom) {
  generator_.set_script([](const Request&) { return std::vector{Finish(FinishReason::kLength)}; });
  Whole(R"({"prompt":"a"})");
  Whole(R"({"prompt":"a"})");
  EXPECT_NE(generator_.WaitForCall(0).sampling.seed, generator_.WaitForCall(1).sampling.seed);
}

TEST_F(GenerationSessionTest, MaxTokensIsClampedToTheContext) {
  generator_.set_script([](const Request&) { return std::vector{Finish(FinishReason::kLength)}; });
  Whole(R"({"prompt":[5,6,7],"max_tokens":1000000000,"min_tokens":400})");
  EXPECT_EQ(generator_.WaitForCall(0).sampling.max_tokens, kMaxModelLen - 3);
  EXPECT_EQ(generator_.WaitForCall(0).sampling.min_tokens, kMaxModelLen - 3);
}

TEST_F(GenerationSessionTest, ManyChoicesRunAFewAtATime) {
  auto session = Start(R"({"prompt":"a","n":100,"max_tokens":1})");
  const size_t at_first = generator_.num_calls();
  EXPECT_LT(at_first, 100u);
  for (size_t i = 0; i < 100; ++i) {
    generator_.Send(i, Finish(FinishReason::kLength, ByteIds("x")));
    const GenerationSession::Step step = session->Advance();
    EXPECT_EQ(step.done, i == 99);
  }
}

TEST_F(GenerationSessionTest, EchoWithLogprobsScoresThePrompt) {
  const std::vector<TokenId> prompt = ByteIds("ab");
  generator_.set_script([&](const Request& request) {
    EXPECT_EQ(request.sampling.num_prompt_logprobs, 1);
    EngineOutput output = WithLogprobs(Finish(FinishReason::kLength, ByteIds("c")), 1);
    output.prompt_logprobs.push_back(std::nullopt);
    output.prompt_logprobs.push_back(
        TokenOutput{.id = prompt[1], .logprob = -2, .rank = 4, .top = {{prompt[0], -1, 1}}});
    return std::vector{output};
  });
  const Json body = {{"prompt", prompt}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 1}};
  const Json choice = Whole(body.dump())["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"a", "b", "c"}));
  EXPECT_EQ(logprobs["token_logprobs"], (Json{nullptr, -2.0, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], (Json{0, 1, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1], (Json{{"a", -1.0}, {"b", -2.0}}));
  EXPECT_EQ(logprobs["top_logprobs"][2], (Json{{"c", -0.5}}));
}

TEST_F(GenerationSessionTest, ScoringAloneReturnsNoToken) {
  generator_.set_script([](const Request& request) {
    EXPECT_EQ(request.sampling.max_tokens, 1);
    return std::vector{Finish(FinishReason::kStop, {2})};
  });
  const Json answer = Whole(R"({"prompt":"ab","echo":true,"max_tokens":0})");
  EXPECT_EQ(answer["choices"][0]["text"], "ab");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST_F(GenerationSessionTest, TimelineInTheUsage) {
  generator_.set_script([](const Request&) {
    EngineOutput output = Finish(FinishReason::kLength, ByteIds("x"));
    output.num_cached_tokens = 1;
    output.timeline.Mark(Event::kArrived, 1'000'000'000);
    output.timeline.Mark(Event::kFirstToken, 1'005'000'000);
    output.timeline.num_drafted = 4;
    output.timeline.num_accepted = 3;
    output.timeline.stage_bytes = {10, 20};
    output.timeline.token_ns = {1'005'000'000, 1'009'000'000, 1'010'000'000};
    output.timeline.provisional_ns = {1'005'000'000, 1'007'000'000, 1'010'000'000};
    output.timeline.verify = VerifyMode::kSource;
    output.timeline.num_verify_rounds = 2;
    output.timeline.num_source_tokens = 5;
    output.timeline.num_self_drafted = 7;
    output.timeline.num_self_accepted = 6;
    output.timeline.estimated_source_ns = 3'000'000;
    output.timeline.anchor = "k3v2";
    output.timeline.estimated_anchor_ns = 4'000'000;
    return std::vector{output};
  });
  const Json usage = Whole(R"({"prompt":"ab","lynx":{"timeline":true}})")["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 1);
  EXPECT_EQ(usage["lynx"]["events_ms"], (Json{{"first_token", 5.0}}));
  EXPECT_EQ(usage["lynx"]["drafted"], 4);
  EXPECT_EQ(usage["lynx"]["self_drafted"], 7);
  EXPECT_EQ(usage["lynx"]["self_accepted"], 6);
  EXPECT_EQ(usage["lynx"]["ttst_ms"], 9.0);
  EXPECT_EQ(usage["lynx"]["provisional_ms"], (Json{5.0, 7.0, 10.0}));
  EXPECT_EQ(usage["lynx"]["verify"], "source");
  EXPECT_EQ(usage["lynx"]["verify_rounds"], 2);
  EXPECT_EQ(usage["lynx"]["verified_by_source"], 5);
  EXPECT_EQ(usage["lynx"]["verify_estimate_ms"], (Json{{"source", 3.0}}));
  EXPECT_EQ(usage["lynx"]["anchor"], "k3v2");
  EXPECT_EQ(usage["lynx"]["anchor_estimate_ms"], 4.0);
  EXPECT_EQ(usage["lynx"]["tpot_ms"], 2.5);
  EXPECT_EQ(usage["lynx"]["longest_stall_ms"], 4.0);
  EXPECT_EQ(usage["lynx"]["acceptance_rate"], 0.75);
  EXPECT_FALSE(usage["lynx"].contains("transfer_ms"));  // there was none
  EXPECT_EQ(usage["lynx"]["stage_bytes"], (Json{{"anchor", 10}, {"residual", 20}, {"exact", 0}}));
  EXPECT_GE(usage["lynx"]["ttft_ms"], 0.0);
}

// The last output of an engine that was asked to stop.
EngineOutput Stopped() {
  EngineOutput output = Finish(FinishReason::kAbort, ByteIds("late"));
  output.timeline.Mark(Event::kArrived, 1'000'000'000);
  output.timeline.Mark(Event::kFinished, 1'007'000'000);
  output.timeline.num_drafted = 4;
  output.timeline.num_accepted = 3;
  return output;
}

TEST_F(GenerationSessionTest, AStopStringKeepsTheTimeline) {
  auto session = Start(R"({"prompt":"a","stop":"x","stream":true,"lynx":{"timeline":true}})");
  EXPECT_FALSE(session->wait_until_ns());
  generator_.Send(0, Tokens(ByteIds("yx")));
  GenerationSession::Step step = session->Advance();
  EXPECT_FALSE(step.done);
  EXPECT_TRUE(session->wait_until_ns());
  EXPECT_NE(step.sse.find("\"finish_reason\":\"stop\""), std::string::npos);  // at once
  EXPECT_TRUE(generator_.WaitForStop(0));
  generator_.Send(0, Tokens(ByteIds("z")));  // was on its way
  EXPECT_TRUE(session->Advance().sse.empty());
  generator_.Send(0, Stopped());
  step = session->Advance();
  EXPECT_TRUE(step.done);
  const Json usage = Json::parse(step.sse.substr(6, step.sse.find('\n') - 6))["usage"];
  EXPECT_EQ(usage["lynx"]["events_ms"], (Json{{"finished", 7.0}}));
  EXPECT_EQ(usage["lynx"]["drafted"], 4);
  EXPECT_EQ(usage["lynx"]["accepted"], 3);
  EXPECT_EQ(usage["completion_tokens"], 2);
  EXPECT_TRUE(generator_.WaitForDrop(0));
}

TEST_F(GenerationSessionTest, AStoppedEngineMayFailOrBeLate) {
  const std::string body = R"({"prompt":"a","n":2,"stop":"x","lynx":{"timeline":true}})";
  auto session = Start(body);
  generator_.Send(0, Tokens(ByteIds("yx")));
  EXPECT_FALSE(session->Advance().done);
  EXPECT_FALSE(session->wait_until_ns());  // the other choice still runs
  generator_.Send(0, Failure(absl::UnavailableError("lost")));
  generator_.Send(1, Finish(FinishReason::kLength, ByteIds("z")));
  GenerationSession::Step step = session->Advance();
  ASSERT_TRUE(step.done && step.response);
  EXPECT_EQ(step.response->status, 200);

  settle_timeout_ = std::chrono::nanoseconds(0);
  session = Start(body);
  generator_.Send(2, Tokens(ByteIds("yx")));
  generator_.Send(3, Tokens(ByteIds("yx")));
  step = session->Advance();
  ASSERT_TRUE(step.done && step.response);
  EXPECT_EQ(step.response->status, 200);
}

TEST_F(GenerationSessionTest, ContinuousUsageIsInEveryChunk) {
  for (const Api api : {kCompletionsApi, kChatApi}) {
    api_ = api;
    generator_.set_script([](const Request&) {
      return std::vector{Tokens(ByteIds("ab")), Finish(FinishReason::kStop, {2})};
    });
    auto session = Start(StrCat(
        "{", api == kChatApi ? R"("messages":[{"role":"user","content":"a"}])" : R"("prompt":"a")",
        R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})"));
    std::vector<int> counts;
    std::istringstream lines(session->Advance().sse);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("data: {")) continue;
      const Json usage = Json::parse(line.substr(6))["usage"];
      ASSERT_TRUE(usage.is_object()) << line;
      counts.push_back(usage["completion_tokens"]);
    }
    // Role (chat), text, finish, usage.
    EXPECT_EQ(counts, api == kChatApi ? (std::vector{0, 2, 3, 3}) : (std::vector{2, 3, 3}));
  }
}

TEST_F(GenerationSessionTest, DraftsAreEventsWithoutChoices) {
  auto session = Start(R"({"prompt":"a","stream":true,"lynx":{"drafts":true}})");
  EXPECT_TRUE(generator_.WaitForCall(0).show_drafts);
  EngineOutput drafts;
  drafts.drafts = ByteIds("dr");
  drafts.num_revoked_drafts = 1;
  generator_.Send(0, drafts);
  const std::string sse = session->Advance().sse;
  const Json event = Json::parse(sse.substr(6));
  EXPECT_EQ(event["object"], "lynx.draft");
  EXPECT_EQ(event["choices"], Json::array());
  EXPECT_EQ(event["lynx"]["text"], "dr");
  EXPECT_EQ(event["lynx"]["num_revoked"], 1);
  EXPECT_EQ(event["lynx"]["provisional"], true);
}

TEST_F(GenerationSessionTest, AnErrorBeforeTheFirstOutputIsAPlainAnswer) {
  auto session = Start(R"({"prompt":"a","stream":true})");
  generator_.Send(0, Failure(absl::ResourceExhaustedError("queue is full")));
  const GenerationSession::Step step = session->Advance();
  ASSERT_TRUE(step.done && step.response);
  EXPECT_EQ(step.response->status, 429);
}

TEST_F(GenerationSessionTest, ALaterErrorIsAnEvent) {
  auto session = Start(R"({"prompt":"a","stream":true,"n":2})");
  generator_.Send(0, Tokens(ByteIds("x")));
  generator_.Send(1, Failure(absl::DataLossError("checksum")));
  const GenerationSession::Step step = session->Advance();
  EXPECT_TRUE(step.done);
  EXPECT_FALSE(step.response);
  EXPECT_NE(step.sse.find("\"text\":\"x\""), std::string::npos);
  EXPECT_NE(step.sse.find("data: {\"error\":{\"code\":\"kv_transfer_failed\""), std::string::npos);
  EXPECT_TRUE(step.sse.ends_with("\n\ndata: [DONE]\n\n"));
  EXPECT_TRUE(generator_.WaitForDrop(0));
}

TEST_F(GenerationSessionTest, TokenIdsComeWithTheirText) {
  generator_.set_script([](const Request&) {
    return std::vector{Tokens(ByteIds("ab")), Finish(FinishReason::kStop, {2})};
  });
  const Json answer = Whole(R"({"prompt":[5],"return_token_ids":true})");
  std::vector<TokenId> ids = ByteIds("ab");
  ids.push_back(2);
  EXPECT_EQ(answer["choices"][0]["token_ids"], Json(ids));
  EXPECT_EQ(answer["choices"][0]["prompt_token_ids"], (Json{5}));
}

TEST_F(GenerationSessionTest, TokenIdsAreThoseOfTheAnswerAlsoUnderEcho) {
  generator_.set_script(
      [](const Request&) { return std::vector{Finish(FinishReason::kLength, ByteIds("c"))}; });
  const Json body = {{"prompt", ByteIds("ab")}, {"echo", true},    {"logprobs", 0},
                     {"max_tokens", 1},         {"stream", false}, {"return_token_ids", true}};
  const Json choice = Whole(body.dump())["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(choice["token_ids"], Json(ByteIds("c")));
}

TEST_F(GenerationSessionTest, PromptIdsAreStreamedAlsoWithoutAnyText) {
  generator_.set_script(
      [](const Request&) { return std::vector{Finish(FinishReason::kStop, {2})}; });
  const std::string sse =
      Start(R"({"prompt":[5],"stream":true,"return_token_ids":true})")->Advance().sse;
  const Json choice = Json::parse(sse.substr(6, sse.find('\n') - 6))["choices"][0];
  EXPECT_EQ(choice["prompt_token_ids"], (Json{5}));
  EXPECT_EQ(choice["token_ids"], (Json{2}));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

// A SentencePiece vocabulary drops the space at the front of a text, not that of an answer, which
// goes on where the prompt ended.
TEST_F(GenerationSessionTest, AnAnswerKeepsTheSpaceBetweenItAndThePrompt) {
  const auto loaded = Tokenizer::Load(LYNX_SOURCE_DIR "/tests/data/text/tiny-spm/tokenizer.json");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  tokenizer_ = loaded->get();
  const std::vector<TokenId> ids = tokenizer_->Encode("the end", {.add_special_tokens = false});
  generator_.set_script([&](const Request&) {
    EngineOutput output = Finish(FinishReason::kLength, ids);
    output.drafts = ids;
    return std::vector{output};
  });
  const std::string prompt = R"({"prompt":"This is","echo":true})";
  EXPECT_EQ(Whole(prompt)["choices"][0]["text"], "This is the end");
  EXPECT_EQ(Whole(R"({"prompt":[1]})")["choices"][0]["text"], "the end") << "nothing but a BOS";
  EXPECT_EQ(Whole(R"({"prompt":[1],"skip_special_tokens":false})")["choices"][0]["text"],
            " the end");
  const std::string sse =
      Start(R"({"prompt":"a","stream":true,"lynx":{"drafts":true}})")->Advance().sse;
  EXPECT_NE(sse.find(R"("text":" the end","token_ids")"), std::string::npos) << sse;
}

TEST_F(GenerationSessionTest, DestroyingItCancels) {
  auto session = Start(R"({"prompt":"a","n":3})");
  session.reset();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(generator_.WaitForDrop(i));
  generator_.Send(0, Tokens({5}));  // too late: must not wake anyone
  EXPECT_EQ(num_wakeups_, 0);
}

TEST(PlanGeneration, RefusesWhatDoesNotFit) {
  RequestRules rules;
  rules.served_model_names = {"tiny"};
  rules.vocab_size = 512;
  rules.max_model_len = 8;
  const TextModel text = MakeTextModel(TinyTokenizer(), nullptr);
  auto plan = [&](size_t num_tokens, std::optional<int64_t> truncate, GenerationPlan* out) {
    OpenAiRequest request;
    request.prompts.push_back({.text = std::nullopt, .ids = std::vector<TokenId>(num_tokens, 5)});
    request.truncate_prompt_tokens = truncate;
    request.max_tokens = 3;
    return PlanGeneration(std::move(request), text, rules, "id", out);
  };
  GenerationPlan out;
  EXPECT_FALSE(plan(7, std::nullopt, &out));
  for (size_t too_many : {8u, 9u, 100u}) {
    GenerationPlan refused;
    const MaybeError error = plan(too_many, std::nullopt, &refused);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, "context_length_exceeded");
    EXPECT_NE(error->message.find("maximum context length is 8 tokens"), std::string::npos);
    EXPECT_NE(error->message.find(std::to_string(too_many)), std::string::npos);
  }
  GenerationPlan cut, to_limit;
  EXPECT_FALSE(plan(100, 4, &cut));
  EXPECT_EQ(cut.prompts[0].size(), 4u);
  EXPECT_FALSE(plan(100, -1, &to_limit));
  EXPECT_EQ(to_limit.prompts[0].size(), 5u);  // leaves room for max_tokens
}

// Two of three choices find the queue full: one that runs is enough for the others to wait.
TEST_F(GenerationSessionTest, ChoicesThatFindAQueueFullAreStartedAgain) {
  auto session = Start(R"({"prompt":"a","n":3,"stream":true})");
  generator_.Send(0, Tokens({5}));
  EXPECT_FALSE(session->Advance().sse.empty());
  for (const size_t call : {1u, 2u}) {
    generator_.Send(call, Failure(absl::ResourceExhaustedError("the waiting queue is full")));
    EXPECT_FALSE(session->Advance().done);
  }
  generator_.Send(0, Finish(FinishReason::kLength));
  EXPECT_FALSE(session->Advance().done);
  generator_.Send(3, Finish(FinishReason::kLength, {6}));
  EXPECT_FALSE(session->Advance().done);
  generator_.Send(4, Finish(FinishReason::kLength, {7}));
  const GenerationSession::Step last = session->Advance();
  EXPECT_TRUE(last.done);
  EXPECT_FALSE(last.failed);
}

TEST_F(GenerationSessionTest, WhenNoChoiceFindsRoomTheRequestIsRefused) {
  auto session = Start(R"({"prompt":"a","n":2})");
  for (const size_t call : {0u, 1u}) {
    generator_.Send(call, Failure(absl::ResourceExhaustedError("the waiting queue is full")));
  }
  EXPECT_EQ(session->Advance().response->status, 429);
}

TEST_F(GenerationSessionTest, AnAnswerThatTakesTooLongEndsWithAnError) {
  request_timeout_ = std::chrono::nanoseconds(1);
  for (const bool has_begun : {false, true}) {
    auto session = Start(R"({"prompt":"a","stream":true})");
    EXPECT_TRUE(session->wait_until_ns());
    if (has_begun) generator_.Send(1, Tokens({5}));
    const GenerationSession::Step step = session->Advance();
    EXPECT_TRUE(step.done);
    if (has_begun) {
      EXPECT_TRUE(step.failed);
      EXPECT_NE(step.sse.find("timeout_error"), std::string::npos) << step.sse;
    } else {
      ASSERT_TRUE(step.response);
      EXPECT_EQ(step.response->status, 504);
      EXPECT_NE(step.response->body.find("timeout_error"), std::string::npos);
    }
  }
  auto in_time = Start(R"({"prompt":"a"})");
  generator_.Send(2, Finish(FinishReason::kLength, {5}));
  EXPECT_EQ(in_time->Advance().response->status, 200) << "what has arrived counts";
}

TEST(PlanGeneration, AHugeTextIsRefusedBySizeAlone) {
  RequestRules rules;
  rules.served_model_names = {"tiny"};
  rules.max_model_len = 8;
  OpenAiRequest request;
  request.prompts.push_back({.text = std::string(1 << 20, 'a'), .ids = {}});
  GenerationPlan plan;
  const MaybeError error = PlanGeneration(
      std::move(request), MakeTextModel(TinyTokenizer(), nullptr), rules, "id", &plan);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "context_length_exceeded");
}

}  // namespace
}  // namespace lynx
