// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai_request.h"

#include <climits>
#include <functional>
#include <map>
#include <random>

#include "gtest/gtest.h"

namespace lynx {
namespace {

RequestRules Rules() {
  RequestRules rules;
  rules.served_model_names = {"tiny", "org/tiny"};
  rules.eos_ids = {2, 7};
  rules.vocab_size = 512;
  rules.max_model_len = 256;
  return rules;
}

// `extra` is merged into a minimal valid body.
std::string With(Api api, const std::string& extra) {
  const std::string base =
      api == kChatApi ? R"("messages":[{"role":"user","content":"hi"}])" : R"("prompt":"hi")";
  return "{" + base + (extra.empty() ? "" : ",") + extra + "}";
}

MaybeError Parse(Api api, const std::string& text, OpenAiRequest* out,
                 const RequestRules& rules = Rules()) {
  RequestBody body;
  if (auto error = ParseBody(text, rules.limits, &body)) return error;
  return ParseOpenAiRequest(api, body, rules, out);
}

OpenAiRequest Good(Api api, const std::string& extra) {
  OpenAiRequest request;
  const MaybeError error = Parse(api, With(api, extra), &request);
  EXPECT_FALSE(error) << extra << ": " << error->message;
  return request;
}

struct Refusal {
  Api api;
  const char* extra;
  const char* param;
  const char* code = "invalid_value";
  int status = 400;
};

constexpr Api C = kCompletionsApi;
constexpr Api X = kChatApi;

TEST(OpenAiRequest, RefusesWithTheFieldsName) {
  const Refusal cases[] = {
      {C, R"("model":"other")", "model", "model_not_found", 404},
      {C, R"("model":3)", "model"},
      {C, R"("max_tokens":0)", "max_tokens"},
      {C, R"("max_tokens":-1)", "max_tokens"},
      {C, R"("max_tokens":true)", "max_tokens"},
      {C, R"("max_tokens":"16")", "max_tokens"},
      {C, R"("max_tokens":1.5)", "max_tokens"},
      {X, R"("max_tokens":0)", "max_tokens"},
      {X, R"("max_completion_tokens":0)", "max_completion_tokens"},
      {C, R"("max_tokens":4,"min_tokens":5)", "min_tokens"},
      {C, R"("min_tokens":-1)", "min_tokens"},
      {C, R"("n":0)", "n"},
      {C, R"("n":false)", "n"},
      {C, R"("n":129)", "n"},
      {C, R"("n":2,"temperature":0)", "n"},
      {C, R"("temperature":-0.1)", "temperature"},
      {C, R"("temperature":2.1)", "temperature"},
      {C, R"("temperature":"hot")", "temperature"},
      {C, R"("temperature":true)", "temperature"},
      {C, R"("top_p":0)", "top_p"},
      {C, R"("top_p":1.01)", "top_p"},
      {C, R"("top_k":-2)", "top_k"},
      {C, R"("top_k":2147483648)", "top_k"},
      {C, R"("min_p":1.5)", "min_p"},
      {C, R"("presence_penalty":2.5)", "presence_penalty"},
      {C, R"("frequency_penalty":-2.5)", "frequency_penalty"},
      {C, R"("repetition_penalty":0)", "repetition_penalty"},
      {C, R"("repetition_penalty":1e300)", "repetition_penalty"},
      {C, R"("seed":9223372036854775808)", "seed"},
      {C, R"("seed":"1")", "seed"},
      {C, R"("logit_bias":{"x":1})", "logit_bias"},
      {C, R"("logit_bias":{"512":1})", "logit_bias"},
      {C, R"("logit_bias":{"-1":1})", "logit_bias"},
      {C, R"("logit_bias":{"1":"a"})", "logit_bias"},
      {C, R"("logit_bias":[1])", "logit_bias"},
      {C, R"("allowed_token_ids":[])", "allowed_token_ids"},
      {C, R"("allowed_token_ids":[512])", "allowed_token_ids"},
      {C, R"("stop":"")", "stop"},
      {C, R"("stop":["a",""])", "stop"},
      {C, R"("stop":["a",1])", "stop"},
      {C, R"("stop":["a","b","c","d","e"])", "stop"},
      {C, R"("stop":7)", "stop"},
      {C, R"("stop_token_ids":[true])", "stop_token_ids"},
      {C, R"("stop_token_ids":[-1])", "stop_token_ids"},
      {C, R"("ignore_eos":1)", "ignore_eos"},
      {C, R"("echo":"yes")", "echo"},
      {C, R"("logprobs":true)", "logprobs"},
      {C, R"("logprobs":21)", "logprobs"},
      {C, R"("logprobs":-1)", "logprobs"},
      {C, R"("logprobs":-2)", "logprobs"},
      {X, R"("logprobs":1)", "logprobs"},
      {X, R"("top_logprobs":1)", "top_logprobs"},
      {X, R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {C, R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
      {C, R"("stream_options":{"include_usage":true})", "stream_options"},
      {C, R"("stream":true,"stream_options":{"include_usage":1})", "stream_options"},
      {C, R"("stream":true,"stream_options":[])", "stream_options"},
      {C, R"("priority":1)", "priority"},
      {C, R"("user":7)", "user"},
      {C, R"("cache_salt":"")", "cache_salt"},
      {C, R"("cache_salt":"a/b")", "cache_salt"},
      {C, R"("cache_salt":"a\u0000b")", "cache_salt"},
      {C, R"("request_id":"a b")", "request_id"},
      {C, R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens"},
      {C, R"("truncation_side":"up")", "truncation_side"},
      {C, R"("lynx":{"timeline":1})", "lynx.timeline"},
      {C, R"("lynx":true)", "lynx"},
      {C, R"("lynx":{"verify":true})", "lynx.verify"},
      {C, R"("lynx":{"verify":"never"})", "lynx.verify"},
      {C, R"("prompt":"")", "prompt"},
      {C, R"("prompt":[])", "prompt"},
      {C, R"("prompt":[[]])", "prompt"},
      {C, R"("prompt":["a",""])", "prompt"},
      {C, R"("prompt":["a",[1]])", "prompt"},
      {C, R"("prompt":[[1],"a"])", "prompt"},
      {C, R"("prompt":["a",1])", "prompt"},
      {C, R"("prompt":["a",null])", "prompt"},
      {C, R"("prompt":[[1],2])", "prompt"},
      {C, R"("prompt":[1,"a"])", "prompt"},
      {C, R"("prompt":[1,[2]])", "prompt"},
      {C, R"("prompt":[1.0])", "prompt"},
      {C, R"("prompt":[[1.0]])", "prompt"},
      {C, R"("stop_token_ids":[1.0])", "stop_token_ids"},
      {C, R"("allowed_token_ids":[1.0])", "allowed_token_ids"},
      {C, R"("prompt":[512])", "prompt"},
      {C, R"("prompt":[true])", "prompt"},
      {C, R"("prompt":{"a":1})", "prompt"},
      {C, R"("prompt":null)", "prompt"},
      {X, R"("messages":[])", "messages"},
      {X, R"("messages":"hi")", "messages"},
      {X, R"("messages":null)", "messages"},
      {X, R"("messages":[3])", "messages"},
      {X, R"("messages":[{"content":"a"}])", "messages"},
      {X, R"("messages":[{"role":"robot","content":"a"}])", "messages"},
      {X, R"("messages":[{"role":"user"}])", "messages"},
      {X, R"("messages":[{"role":"user","content":null}])", "messages"},
      {X, R"("messages":[{"role":"user","content":3}])", "messages"},
      {X, R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "messages"},
      {X, R"("messages":[{"role":3,"content":"a"}])", "messages"},
      {X, R"("messages":[{"role":"function","content":"a"}])", "messages"},
      {X, R"("messages":[{"role":"user","content":"a","name":5}])", "messages"},
      {X, R"("messages":[{"role":"tool","content":"a","tool_call_id":5}])", "messages"},
      {X, R"("messages":[{"role":"assistant","content":"a","refusal":[]}])", "messages"},
      {X, R"("messages":[{"role":"assistant","content":"a","reasoning":{}}])", "messages"},
      {X, R"("messages":[{"role":"assistant","content":"a","reasoning_content":1}])", "messages"},
      {X, R"("messages":[{"role":"assistant","content":"a","tool_calls":{}}])", "messages"},
      {X, R"("messages":[{"role":"assistant","tool_calls":[{"id":1,"function":{"name":"f"}}]}])",
       "messages"},
      {X, R"("messages":[{"role":"assistant","tool_calls":[{"type":1,"function":{"name":"f"}}]}])",
       "messages"},
      {X, R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
       "messages", "unsupported_parameter"},
      {X, R"("tools":[])", "tools"},
      {X, R"("tools":[{"type":"x"}])", "tools"},
      {X, R"("tools":[{"type":"function","function":{"name":"f"}}])", "tools",
       "unsupported_parameter"},
      {X, R"("tool_choice":"auto")", "tool_choice"},
      {X, R"("response_format":{"type":"json_object"})", "response_format",
       "unsupported_parameter"},
      {X, R"("response_format":{"type":"json_schema"})", "response_format"},
      {X, R"("response_format":{"type":"poem"})", "response_format"},
      {X, R"("chat_template":"x")", "chat_template", "unsupported_parameter"},
      {X, R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs"},
      {X, R"("reasoning_effort":"huge")", "reasoning_effort"},
      {X, R"("continue_final_message":true,"add_generation_prompt":true)",
       "continue_final_message"},
      {C, R"("suffix":"x")", "suffix", "unsupported_parameter"},
      {C, R"("best_of":2)", "best_of", "unsupported_parameter"},
      {C, R"("use_beam_search":true)", "use_beam_search", "unsupported_parameter"},
      {C, R"("structured_outputs":{"regex":"a"})", "structured_outputs", "unsupported_parameter"},
      {X, R"("guided_json":{})", "guided_json", "unsupported_parameter"},
  };
  for (const Refusal& c : cases) {
    OpenAiRequest request;
    const MaybeError error = Parse(c.api, With(c.api, c.extra), &request);
    ASSERT_TRUE(error) << c.extra;
    EXPECT_EQ(error->param, c.param) << c.extra;
    EXPECT_EQ(error->code, c.code) << c.extra;
    EXPECT_EQ(error->status, c.status) << c.extra;
    EXPECT_FALSE(error->message.empty()) << c.extra;
  }
}

TEST(OpenAiRequest, NamesTheBoundThatWasMissed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("repetition_penalty":1e300)",
       "repetition_penalty must be at most 3.40282e+38, got 1e+300"},
      {R"("repetition_penalty":-1)", "repetition_penalty must be greater than 0, got -1"},
      {R"("repetition_penalty":1e-300)",
       "repetition_penalty must be at least 1.17549e-38, got 1e-300"},
      {R"("temperature":1e300)", "temperature must be at most 2, got 1e+300"},
      {R"("temperature":-1e300)", "temperature must be at least 0, got -1e+300"},
      {R"("top_p":1e300)", "top_p must be at most 1, got 1e+300"},
      {R"("top_k":2147483648)", "top_k must be at most 2147483647, got 2147483648"},
      {R"("n":0)", "n must be at least 1, got 0"},
  };
  for (const auto& [extra, message] : cases) {
    OpenAiRequest request;
    const MaybeError error = Parse(C, With(C, extra), &request);
    ASSERT_TRUE(error) << extra;
    EXPECT_EQ(error->message, message);
  }
}

TEST(OpenAiRequest, NullIsAbsentAndUnknownIsIgnored) {
  const OpenAiRequest request = Good(
      C, R"("max_tokens":null,"n":null,"temperature":null,"stop":null,"stream":null,"seed":null,
            "stream_options":null,"logprobs":null,"suffix":null,"best_of":null,"user":"me",
            "something_new":{"a":[1]},"bad_words":[],"length_penalty":1.0,"best_of":1)");
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.num_samples, 1);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_FALSE(request.seed);
}

TEST(OpenAiRequest, ReadsEveryValue) {
  const OpenAiRequest request = Good(
      C, R"("model":"org/tiny","max_tokens":1000000000000,"min_tokens":3,"n":2,"temperature":0.5,
            "top_p":0.9,"top_k":-1,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,
            "repetition_penalty":1.1,"seed":-9223372036854775808,"logit_bias":{"5":-200,"1":3.5},
            "stop":["x","y"],"stop_token_ids":[9,7],"logprobs":2,"echo":true,"stream":true,
            "stream_options":{"include_usage":true,"continuous_usage_stats":true},
            "cache_salt":"s","priority":0,"lynx":{"timeline":true,"drafts":true,"verify":"hold","other":1})");
  EXPECT_EQ(request.model, "org/tiny");
  EXPECT_EQ(request.max_tokens, 1000000000000);
  EXPECT_EQ(request.num_samples, 2);
  EXPECT_EQ(request.seed, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(request.stops, (std::vector<std::string>{"x", "y"}));
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{2, 7, 9}));
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{1, 3.5f}, {5, -100.f}}));
  EXPECT_EQ(sampling.min_tokens, 3);
  EXPECT_EQ(sampling.num_logprobs, 2);
  EXPECT_EQ(sampling.num_prompt_logprobs, 2);  // because of echo
  EXPECT_TRUE(request.include_usage && request.continuous_usage && request.show_timeline &&
              request.show_drafts);
  EXPECT_EQ(request.verify, VerifyMode::kHold);
}

TEST(OpenAiRequest, PrioritiesAreAnOrder) {
  RequestRules rules = Rules();
  rules.accepts_priority = true;
  for (const auto& [text, want] : std::map<std::string, int>{
           {"-3", -3}, {"null", 0}, {"9223372036854775807", INT_MAX}, {"-99999999999", INT_MIN}}) {
    OpenAiRequest request;
    EXPECT_FALSE(Parse(C, With(C, R"("user":"u","priority":)" + text), &request, rules));
    EXPECT_EQ(request.priority, want);
    EXPECT_EQ(request.user, "u");
  }
}

TEST(OpenAiRequest, GreedyTurnsTheFiltersOff) {
  const OpenAiRequest request = Good(C, R"("temperature":0.000001,"top_p":0.5,"top_k":3)");
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
}

TEST(OpenAiRequest, IgnoreEosDropsOnlyTheServersStops) {
  EXPECT_EQ(Good(C, R"("ignore_eos":true,"stop_token_ids":[9])").sampling.stop_token_ids,
            (std::vector<TokenId>{9}));
}

TEST(OpenAiRequest, ServerDefaultsComeAfterTheRequest) {
  RequestRules rules = Rules();
  rules.sampling_defaults = {.temperature = 0.2f, .top_p = 0.8f, .top_k = 20};
  OpenAiRequest request;
  ASSERT_FALSE(Parse(C, R"({"prompt":"a","top_p":0.3})", &request, rules));
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.2f);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.3f);
  EXPECT_EQ(request.sampling.top_k, 20);
}

TEST(OpenAiRequest, PromptForms) {
  EXPECT_EQ(Good(C, R"("prompt":["a","b"])").prompts.size(), 2u);
  EXPECT_EQ(Good(C, R"("prompt":[1,2,3])").prompts.front().ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(Good(C, R"("prompt":[[1],[2,3]])").prompts[1].ids, (std::vector<TokenId>{2, 3}));
}

TEST(OpenAiRequest, MessagesTakeTheFormOfTemplates) {
  const OpenAiRequest request = Good(X, R"("messages":[
        {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":null},
        {"role":"assistant","content":null,"reasoning":"r",
         "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
        {"role":"tool","content":"done"}],"max_completion_tokens":5,"max_tokens":9)");
  const Json messages = Json::parse(request.chat.messages_json);
  EXPECT_EQ(messages[0], (Json{{"role", "user"}, {"content", "a\nb"}}));
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(messages[1]["reasoning_content"], "r");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_FALSE(Good(X, "").max_tokens);
}

TEST(OpenAiRequest, WhatTemplatesPrintKeepsItsOrder) {
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"z":{},"a":{"y":1,"b":[]}}}}])";
  const OpenAiRequest request = Good(X, R"("messages":[
        {"role":"user","content":"a","extra":{"y":1,"b":2}},
        {"role":"assistant","reasoning_content":"r","tool_calls":[
         {"type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]}],
        "tool_choice":"none","documents":[{"title":"t","doc":"d"}],"tools":)" +
                                            tools + R"(,"chat_template_kwargs":{"z":1,"a":2})");
  EXPECT_EQ(
      request.chat.messages_json,
      R"([{"role":"user","content":"a","extra":{"y":1,"b":2}},)"
      R"({"role":"assistant","reasoning_content":"r","tool_calls":[{"type":"function",)"
      R"("function":{"name":"f","arguments":{"z":1,"a":2}}}],"reasoning":"r","content":""}])");
  EXPECT_EQ(request.chat.tools_json, tools);
  EXPECT_EQ(request.chat.kwargs_json, R"({"z":1,"a":2,"documents":[{"title":"t","doc":"d"}]})");
}

TEST(OpenAiRequest, ACallMayHaveNoContentAndEmptyArguments) {
  const OpenAiRequest request = Good(X, R"("messages":[{"role":"assistant","tool_calls":[
        {"type":"function","function":{"name":"f","arguments":""}}]}])");
  const Json message = Json::parse(request.chat.messages_json)[0];
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], Json::object());
  EXPECT_EQ(message["content"], "");
}

TEST(OpenAiRequest, ObjectsForTemplatesHaveAMemberLimit) {
  for (const int num_members : {512, 513}) {
    std::string object = "{";
    for (int i = 0; i < num_members; ++i) object += StrCat(i > 0 ? "," : "", "\"k", i, "\":[]");
    object += "}";
    const struct {
      const char* param;
      std::string extra;
    } cases[] = {
        {"messages", R"("messages":[{"role":"user","content":"a","x":)" + object + "}]"},
        {"messages", R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f",)"
                     R"("arguments":)" +
                         Json(object).dump() + "}}]}]"},
        {"tools", R"("tool_choice":"none","tools":[{"type":"function","function":{"name":"f",)"
                  R"("parameters":)" +
                      object + "}}]"},
        {"chat_template_kwargs", R"("chat_template_kwargs":)" + object},
        {"documents", R"("documents":[)" + object + "]"},
    };
    for (const auto& c : cases) {
      OpenAiRequest request;
      const MaybeError error = Parse(X, With(X, c.extra), &request);
      EXPECT_EQ(error.has_value(), num_members > 512) << c.extra;
      EXPECT_EQ(error ? error->param : c.param, c.param);
    }
    OpenAiRequest request;
    std::string bias = "{";
    for (int i = 0; i < 512; ++i) bias += StrCat(i > 0 ? "," : "", "\"", i, "\":1");
    EXPECT_FALSE(Parse(X, With(X, "\"logit_bias\":" + bias + "}"), &request));
  }
}

TEST(MemberText, IsTheLastOfItsName) {
  const std::string object = R"( { "a" : [1,{"b":":,}"}] ,"b\"":"\\","\u0062" : "}{" , "b":2,)"
                             R"("c":{"b":3} } )";
  EXPECT_EQ(MemberText(object, "a"), R"( [1,{"b":":,}"}] )");
  EXPECT_EQ(MemberText(object, "b\""), R"("\\")");
  EXPECT_EQ(MemberText(object, "b"), "2");
  EXPECT_EQ(MemberText(object, "c"), R"({"b":3} )");
  EXPECT_EQ(MemberText(object, "d"), "");
  EXPECT_EQ(MemberText(R"({"\u0062":1})", "b"), "1");
  EXPECT_EQ(MemberText("{}", "b"), "");
}

TEST(MemberText, AgreesWithTheParser) {
  std::mt19937 random(5);
  const auto any_string = [&] {
    std::string text;
    for (uint32_t i = random() % 4; i > 0; --i) text += "ab\"\\{}[]:, \n"[random() % 12];
    return text;
  };
  const std::function<Json(int)> any_value = [&](int depth) {
    Json value = random() % 2 == 0 ? Json(any_string()) : Json(random() % 9);
    for (uint32_t i = random() % 4; depth > 0 && i > 0; --i) {
      if (!value.is_structured()) value = random() % 2 == 0 ? Json::array() : Json::object();
      if (value.is_array()) {
        value.push_back(any_value(depth - 1));
      } else {
        value[any_string()] = any_value(depth - 1);
      }
    }
    return value;
  };
  for (int round = 0; round < 3000; ++round) {
    Json object = Json::object();
    for (uint32_t i = random() % 5; i > 0; --i) object[any_string()] = any_value(3);
    const std::string text = object.dump(static_cast<int>(random() % 3) - 1);
    for (const auto& [name, value] : object.items()) {
      EXPECT_EQ(Json::parse(MemberText(text, name)), value) << text;
    }
    EXPECT_EQ(MemberText(text, "none"), "");
  }
}

TEST(OpenAiRequest, TemplateArguments) {
  const OpenAiRequest request =
      Good(X, R"("chat_template_kwargs":{"enable_thinking":true},"reasoning_effort":"none")");
  EXPECT_EQ(Json::parse(request.chat.kwargs_json),
            (Json{{"enable_thinking", true}, {"reasoning_effort", "none"}}));
  const OpenAiRequest open = Good(X, R"("continue_final_message":true)");
  EXPECT_FALSE(open.chat.add_generation_prompt);
  EXPECT_EQ(open.response_role, "user");
}

TEST(ParseBody, RefusesHostileShapes) {
  GatewayLimits limits;
  limits.max_json_depth = 5;
  limits.max_json_values = 20;
  RequestBody out;
  for (const char* text :
       {"", "{", "[1]", "3", "null", "{\"a\":1e999}", "{\"a\":NaN}", "{\"a\":\"\xff\"}",
        "{\"a\":[[[[[[1]]]]]]}", "{\"a\":[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1]}", "{} x"}) {
    EXPECT_TRUE(ParseBody(text, limits, &out)) << text;
  }
  EXPECT_FALSE(
      ParseBody(R"({"a":"[[[[[[[[[[[[[,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,"})", limits, &out));
}

// The library's message quotes the whole string that has a raw line end in it.
TEST(ParseBody, ErrorsDoNotSendTheBodyBack) {
  const std::string text = "{\"prompt\":\"" + std::string(1 << 20, 'a') + "\n\"}";
  RequestBody body;
  const MaybeError error = ParseBody(text, {}, &body);
  ASSERT_TRUE(error);
  const std::string answer = ErrorBody(*error);
  EXPECT_LT(answer.size(), 1200u);
  EXPECT_NE(answer.find("column"), std::string::npos) << answer;
  EXPECT_NE(answer.find("must be escaped"), std::string::npos) << answer;
}

TEST(OpenAiRequest, ChoicesAreCappedTogether) {
  RequestRules rules = Rules();
  rules.limits.max_num_choices = 4;
  OpenAiRequest request;
  EXPECT_FALSE(Parse(C, R"({"prompt":["a","b"],"n":2})", &request, rules));
  EXPECT_EQ(Parse(C, R"({"prompt":["a","b","c"],"n":2})", &request, rules)->param, "n");
}

}  // namespace
}  // namespace lynx
