// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kOneUser[] = R"([{"role": "user", "content": "Hi"}])";

absl::StatusOr<std::string> Render(const std::string& source, ChatTemplateInput input) {
  auto chat_template = ChatTemplate::Create(source, nullptr, nullptr);
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->Render(input);
}

absl::StatusOr<std::string> Render(const std::string& source) {
  return Render(source, {.messages_json = kOneUser, .tools_json = "null", .kwargs_json = "{}"});
}

std::string ErrorOf(const std::string& source) {
  const auto rendered = Render(source);
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(rendered.status().message());
}

TEST(ChatTemplate, UndefinedTokensAreUndefined) {
  EXPECT_EQ(*Render("{{ bos_token is defined }}{{ eos_token }}"), "False");
}

TEST(ChatTemplate, EndlessLoopEndsInAnError) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(ErrorOf("{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a * b %}"
                      "{% endfor %}{% endfor %}"),
              StartsWith("runtime: the template takes too long"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(*Render("{{ messages[0].content }}"), "Hi");
}

TEST(ChatTemplate, GreedyTemplatesEndInAnError) {
  for (const char* source : {
           "{{ 'x' * 100000000000 }}",
           "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
           "{% endfor %}{{ ns.s }}",
           "{{ [1] * 1000000000 }}",
           "{{ 'x'.ljust(100000000000) }}",
           "{{ '%100000000000d' % 1 }}",
           "{{ 'x' | center(100000000000) }}",
       }) {
    EXPECT_THAT(ErrorOf(source), StartsWith("runtime: ")) << source;
  }
  EXPECT_EQ(*Render("{{ 'x' * 3 }}"), "xxx");
}

TEST(ChatTemplate, HugeIntegersAndRangesAreRefused) {
  for (const char* source : {"{{ 10 ** (10 ** 8) }}",
                             "{% set ns = namespace(i=10) %}{% for k in range(50) %}"
                             "{% set ns.i = ns.i * ns.i %}{% endfor %}",
                             "{{ 1 | round(1000000000, 'ceil') }}"}) {
    EXPECT_THAT(ErrorOf(source), StartsWith("sandbox: ")) << source;
  }
  EXPECT_THAT(ErrorOf("{% for i in range(100000000000) %}{% endfor %}"), StartsWith("runtime: "));
}

TEST(ChatTemplate, DeepRecursionEndsInAnError) {
  EXPECT_THAT(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), StartsWith("runtime: "));
  const std::string open(20000, '(');
  EXPECT_THAT(ErrorOf("{{ " + open + "1" + std::string(20000, ')') + " }}"),
              testing::Not(testing::IsEmpty()));
  EXPECT_EQ(*Render("ok"), "ok");
}

TEST(ChatTemplate, SandboxKeepsPythonAway) {
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}", "{{ dict.__globals__.x }}",
        "{{ raise_exception.__globals__.x }}", "{{ strftime_now.__code__.x }}"}) {
    EXPECT_THAT(ErrorOf(source), StartsWith("sandbox: ")) << source;
  }
  EXPECT_EQ(Render("{{ '{0.__class__}'.format(1) }}").value_or("refused"), "");
}

TEST(ChatTemplate, LoneSurrogatesBecomeReplacementCharacters) {
  const auto rendered =
      Render("{{ messages[0].content }}",
             {.messages_json = R"([{"role": "user", "content": "a\ud83db\ud83d\ude00"}])",
              .tools_json = "null",
              .kwargs_json = "{}"});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_THAT(*rendered, StartsWith("a\uFFFD"));
  EXPECT_THAT(*rendered, testing::EndsWith("b\U0001F600"));
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const ChatTemplateInput input = {.messages_json = R"([{"role": "user", "content": "Hi"},
                           {"role": "assistant", "content": "Well "}])",
                                   .tools_json = "null",
                                   .kwargs_json = "{}",
                                   .add_generation_prompt = false,
                                   .continue_final_message = true};
  EXPECT_EQ(*Render("{% for m in messages %}<{{ m.content }}>{% endfor %}", input), "<Hi><Well ");
  EXPECT_EQ(*Render("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", input),
            "<Hi><Well");
  EXPECT_FALSE(Render("{{ messages[0].content }}", input).ok());
}

TEST(ChatTemplate, KeywordArgumentsReachTheTemplate) {
  const auto rendered = Render("{{ enable_thinking }} {{ documents }} {{ tools }}",
                               {.messages_json = kOneUser,
                                .tools_json = "[1]",
                                .kwargs_json = R"({"enable_thinking": false, "documents": [2]})"});
  EXPECT_EQ(*rendered, "False [2] [1]");
}

TEST(ChatTemplate, RefusesBrokenInput) {
  for (const ChatTemplateInput& input : std::initializer_list<ChatTemplateInput>{
           {.messages_json = "[", .tools_json = "null", .kwargs_json = "{}"},
           {.messages_json = "{}", .tools_json = "null", .kwargs_json = "{}"},
           {.messages_json = "[3]", .tools_json = "null", .kwargs_json = "{}"},
           {.messages_json = kOneUser, .tools_json = "5", .kwargs_json = "{}"},
           {.messages_json = kOneUser, .tools_json = "null", .kwargs_json = "[]"},
           {.messages_json = kOneUser, .tools_json = "null", .kwargs_json = R"({"tools": 1})"},
           {.messages_json = kOneUser, .tools_json = "null", .kwargs_json = "{}", .now = "noon"}}) {
    const auto rendered = Render("x", input);
    EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rendered.status().message()), StartsWith("validation: "));
  }
}

TEST(ChatTemplate, RendersFromManyThreads) {
  auto chat_template = ChatTemplate::Create("{{ messages[0].content }}!", nullptr, nullptr);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string messages =
          R"([{"role": "user", "content": ")" + std::to_string(t) + R"("}])";
      for (int i = 0; i < 25; ++i) {
        const auto rendered =
            (*chat_template)
                ->Render({.messages_json = messages, .tools_json = "null", .kwargs_json = "{}"});
        EXPECT_EQ(*rendered, std::to_string(t) + "!");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ChatTemplate, LeavesSignalsAlone) {
  ASSERT_TRUE(Render("x").ok());
  for (int signal : {SIGINT, SIGPIPE, SIGTERM}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << signal;
  }
}

// A Python of one's own, first on PATH and named in the environment, must not matter.
TEST(ChatTemplateDeathTest, IgnoresTheEnvironment) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("PYTHONHOME", "/nonexistent", 1);
        setenv("PYTHONPATH", "/nonexistent", 1);
        setenv("VIRTUAL_ENV", "/nonexistent", 1);
        setenv("PATH", "/nonexistent", 1);
        const auto rendered = Render("{{ messages[0].content }}");
        std::fprintf(stderr, "%s\n",
                     rendered.ok() ? rendered->c_str() : rendered.status().ToString().c_str());
        std::_Exit(rendered.ok() ? 0 : 1);
      },
      // A matcher, not a regular expression: libonig brings a regexec of its own.
      testing::ExitedWithCode(0), testing::HasSubstr("Hi"));
}

class TemplateSource : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  absl::StatusOr<std::string> Find() { return ChatTemplate::FindSource(folder_.string()); }

  std::filesystem::path folder_;
};

TEST_F(TemplateSource, IsFoundInItsThreePlaces) {
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", "{}");
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "a"},
                              {"name": "default", "template": "b"}]})");
  EXPECT_EQ(*Find(), "b");
  Write("tokenizer_config.json", R"({"chat_template": "c"})");
  EXPECT_EQ(*Find(), "c");
  Write("chat_template.jinja", "d");
  EXPECT_EQ(*Find(), "d");
}

TEST_F(TemplateSource, OfAWrongTypeIsRefused) {
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(Find().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Find().status().message()), HasSubstr("chat_template"));
}

}  // namespace
}  // namespace lynx
