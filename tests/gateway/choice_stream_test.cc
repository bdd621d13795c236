// SPDX-License-Identifier: Apache-2.0
#include "gateway/choice_stream.h"

#include <random>

#include "gtest/gtest.h"
#include "tests/gateway/fake_generator.h"
#include "tests/gateway/tiny_text.h"

namespace lynx {
namespace {

constexpr TokenId kEos = 2;

OpenAiRequest Asking(std::vector<std::string> stops = {}) {
  OpenAiRequest request;
  request.stops = std::move(stops);
  request.sampling.stop_token_ids = {kEos};
  return request;
}

struct Shown {
  std::string text;
  std::vector<TokenId> ids;
};

void Drain(ChoiceStream* stream, Shown* shown) {
  ChoiceDelta delta = stream->Take();
  shown->text += delta.text;
  for (const PlacedToken& placed : delta.tokens) shown->ids.push_back(placed.token.id);
}

TEST(ChoiceStream, CharactersAreNeverSplit) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
  ChoiceStream stream(Asking(), TinyTokenizer(), 0);
  Shown shown;
  for (TokenId id : ByteIds(text)) {
    stream.Push(Tokens({id}));
    const ChoiceDelta delta = stream.Take();
    EXPECT_EQ(DumpJson(delta.text).find("\\ufffd"), std::string::npos);
    EXPECT_EQ(delta.text.empty(), delta.tokens.empty());  // text and ids go together
    shown.text += delta.text;
    for (const PlacedToken& placed : delta.tokens) shown.ids.push_back(placed.token.id);
  }
  EXPECT_EQ(shown.text, text);
  EXPECT_EQ(shown.ids, ByteIds(text));
}

TEST(ChoiceStream, AHalfCharacterIsFlushedAtTheEnd) {
  ChoiceStream stream(Asking(), TinyTokenizer(), 0);
  Shown shown;
  stream.Push(Tokens(ByteIds("x\xE2\x82")));
  Drain(&stream, &shown);
  EXPECT_EQ(shown.text, "x");
  stream.Push(Finish(FinishReason::kLength));
  Drain(&stream, &shown);
  EXPECT_EQ(shown.text, "x\xEF\xBF\xBD");
  EXPECT_EQ(shown.ids.size(), 3u);
}

TEST(ChoiceStream, EosHasNoTextButCounts) {
  ChoiceStream stream(Asking(), TinyTokenizer(), 0);
  std::vector<TokenId> ids = ByteIds("hi");
  ids.push_back(kEos);
  stream.Push(Finish(FinishReason::kStop, ids));
  Shown shown;
  Drain(&stream, &shown);
  EXPECT_EQ(shown.text, "hi");
  EXPECT_EQ(shown.ids, ids);
  EXPECT_EQ(stream.num_tokens(), 3);
  EXPECT_TRUE(stream.stop_reason().is_null());
}

TEST(ChoiceStream, AStopTokenIsShownOnlyWhenAskedFor) {
  for (bool include : {false, true}) {
    OpenAiRequest request = Asking();
    const TokenId stop = ByteId('!');
    request.sampling.stop_token_ids = {kEos, stop};
    std::sort(request.sampling.stop_token_ids.begin(), request.sampling.stop_token_ids.end());
    request.include_stop_in_output = include;
    ChoiceStream stream(request, TinyTokenizer(), 0);
    EngineOutput output = Finish(FinishReason::kStop, ByteIds("hi!"));
    output.stop_token = stop;
    stream.Push(output);
    EXPECT_EQ(stream.Take().text, include ? "hi!" : "hi");
    EXPECT_EQ(stream.stop_reason(), stop);
  }
}

TEST(ChoiceStream, AStopStringInsideOneOutputEndsTheTokensThere) {
  ChoiceStream stream(Asking({"ND"}), TinyTokenizer(), 0);
  stream.Push(Tokens(ByteIds("aENDless")));
  Shown shown;
  Drain(&stream, &shown);
  EXPECT_TRUE(stream.finished());
  EXPECT_EQ(shown.text, "aE");
  EXPECT_EQ(shown.ids, ByteIds("aEND"));
  EXPECT_EQ(stream.num_tokens(), 4);
  EXPECT_EQ(stream.stop_reason(), "ND");
  stream.Push(Tokens(ByteIds("more")));
  EXPECT_EQ(stream.num_tokens(), 4);
}

TEST(ChoiceStream, HeldBeginningOfAStopIsFlushedAtTheEnd) {
  ChoiceStream stream(Asking({"STOP"}), TinyTokenizer(), 0);
  Shown shown;
  stream.Push(Tokens(ByteIds("xSTO")));
  Drain(&stream, &shown);
  EXPECT_EQ(shown.text, "x");
  EXPECT_EQ(shown.ids, ByteIds("x"));
  stream.Push(Finish(FinishReason::kLength));
  Drain(&stream, &shown);
  EXPECT_EQ(shown.text, "xSTO");
  EXPECT_EQ(shown.ids, ByteIds("xSTO"));
  EXPECT_EQ(stream.finish_reason(), FinishReason::kLength);
}

TEST(ChoiceStream, StopStringsDoNotCountBeforeMinTokens) {
  OpenAiRequest request = Asking({"b"});
  request.sampling.min_tokens = 3;
  ChoiceStream stream(request, TinyTokenizer(), 0);
  stream.Push(Tokens(ByteIds("abab")));
  EXPECT_EQ(stream.Take().text, "aba");
  EXPECT_EQ(stream.num_tokens(), 4);
}

TEST(ChoiceStream, IncludedStopString) {
  OpenAiRequest request = Asking({"ND"});
  request.include_stop_in_output = true;
  ChoiceStream stream(request, TinyTokenizer(), 0);
  stream.Push(Tokens(ByteIds("EN")));
  EXPECT_EQ(stream.Take().text, "E");
  stream.Push(Tokens(ByteIds("Dx")));
  EXPECT_EQ(stream.Take().text, "ND");
}

TEST(ChoiceStream, OffsetsCountCharacters) {
  ChoiceStream stream(Asking(), TinyTokenizer(), 10);
  stream.Push(Finish(FinishReason::kLength, ByteIds("\xC3\xA9z")));
  std::vector<size_t> offsets;
  for (const PlacedToken& placed : stream.Take().tokens) offsets.push_back(placed.text_offset);
  EXPECT_EQ(offsets, (std::vector<size_t>{10, 10, 11}));
}

// However an engine cuts its tokens into outputs, a client sees the same.
TEST(ChoiceStream, AnyChunkingShowsTheSame) {
  std::mt19937 random(3);
  const std::string alphabet = "ab\xC3\xA9\xE2\x82\xAC\x80";
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (size_t i = 0; i < 1 + random() % 20; ++i) bytes += alphabet[random() % alphabet.size()];
    const std::vector<TokenId> ids = ByteIds(bytes);
    const OpenAiRequest request = Asking({"ab", "\xC3\xA9\xE2\x82\xAC", "bba"});
    ChoiceStream whole(request, TinyTokenizer(), 0);
    whole.Push(Finish(FinishReason::kLength, ids));
    Shown expected;
    Drain(&whole, &expected);

    ChoiceStream stream(request, TinyTokenizer(), 0);
    Shown shown;
    for (size_t at = 0; at < ids.size();) {
      const size_t size = std::min(ids.size() - at, size_t{1} + random() % 4);
      stream.Push(Tokens({ids.begin() + static_cast<ptrdiff_t>(at),
                          ids.begin() + static_cast<ptrdiff_t>(at + size)}));
      Drain(&stream, &shown);
      at += size;
    }
    stream.Push(Finish(FinishReason::kLength));
    Drain(&stream, &shown);
    EXPECT_EQ(shown.text, expected.text);
    EXPECT_EQ(shown.ids, expected.ids);
    EXPECT_EQ(stream.finish_reason(), whole.finish_reason());
  }
}

}  // namespace
}  // namespace lynx
