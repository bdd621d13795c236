// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/prompts.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "app/openai_stream.h"

namespace lynx {
namespace {

constexpr std::string_view kWords[] = {
    "the",      "of",         "and",       "to",          "in",        "is",        "was",
    "for",      "on",         "that",      "by",          "with",      "from",      "at",
    "his",      "it",         "an",        "are",         "were",      "which",     "this",
    "be",       "has",        "had",       "first",       "one",       "their",     "its",
    "new",      "after",      "but",       "who",         "not",       "they",      "have",
    "her",      "she",        "two",       "been",        "other",     "when",      "there",
    "all",      "during",     "into",      "school",      "time",      "may",       "years",
    "more",     "most",       "only",      "over",        "city",      "some",      "world",
    "would",    "where",      "later",     "up",          "such",      "used",      "many",
    "can",      "state",      "about",     "national",    "out",       "known",     "university",
    "united",   "then",       "made",      "people",      "film",      "high",      "than",
    "three",    "music",      "year",      "family",      "south",     "under",     "war",
    "album",    "part",       "area",      "well",        "while",     "being",     "called",
    "home",     "became",     "life",      "work",        "like",      "number",    "between",
    "long",     "day",        "general",   "north",       "game",      "following", "history",
    "show",     "place",      "group",     "team",        "public",    "early",     "located",
    "born",     "population", "small",     "series",      "these",     "house",     "second",
    "left",     "church",     "back",      "days",        "old",       "season",    "party",
    "name",     "another",    "including", "different",   "land",      "book",      "story",
    "water",    "line",       "company",   "country",     "street",    "river",     "west",
    "east",     "power",      "play",      "young",       "great",     "form",      "top",
    "age",      "local",      "head",      "large",       "man",       "before",    "through",
    "against",  "still",      "set",       "took",        "since",     "until",     "best",
    "five",     "near",       "air",       "own",         "main",      "son",       "four",
    "six",      "last",       "end",       "act",         "law",       "car",       "red",
    "black",    "white",      "road",      "town",        "island",    "official",  "field",
    "king",     "lake",       "late",      "station",     "system",    "village",   "point",
    "order",    "club",       "court",     "death",       "half",      "among",     "force",
    "short",    "side",       "hand",      "fire",        "star",      "final",     "center",
    "building", "office",     "army",      "members",     "free",      "moved",     "service",
    "military", "government", "business",  "development", "community", "society",   "language",
    "student",  "research",   "education", "program",     "design",    "process",   "energy",
    "science",  "human",      "body",      "mind",        "food",      "plant",     "tree",
    "light",    "green",      "blue",      "gold",        "dark",      "deep",      "hot",
    "cold",     "full",       "open",      "close",       "hard",      "soft",      "clear",
    "simple",   "real",       "true",      "right",       "wrong",     "good",      "bad",
    "big",      "little",     "few",       "less",        "much",      "every",     "each",
    "both",     "either",     "same",      "next",        "past",      "present",   "future",
    "morning",  "night",      "week",      "month",       "hour",      "minute",    "summer",
    "winter",   "spring",     "question",  "answer",      "problem",   "reason",    "result",
    "change",   "effect",     "cause",     "example",     "level",     "rate",      "price",
    "cost",     "value",      "market",    "money",       "bank",      "trade",     "industry",
    "product",  "material",   "paper",     "glass",       "stone",     "wood",      "metal",
    "oil",      "gas",        "heart",     "eye",         "face",      "voice",     "hair",
    "skin",     "bone",       "blood",     "brain",       "mother",    "father",    "brother",
    "sister",   "husband",    "wife",      "child",       "friend",    "teacher",   "doctor",
    "artist",   "writer",     "player",    "leader",      "president", "minister",  "judge",
    "officer",  "soldier",    "worker",    "driver",      "farmer",    "sea",       "beach",
    "mountain", "forest",     "hill",      "valley",      "bridge",    "tower",     "castle",
    "garden",   "park",       "square",    "shop",        "store",     "hotel",     "hospital",
    "museum",   "library",    "theatre",
};

// Uniform in [n (1 - r), n (1 + r)], at least 1.
int DrawLength(int n, double r, std::mt19937_64& random) {
  const int low = std::max(1, static_cast<int>(std::floor(n * (1 - r))));
  const int high = std::max(low, static_cast<int>(std::ceil(n * (1 + r))));
  return std::uniform_int_distribution<int>(low, high)(random);
}

absl::StatusOr<ServePrompt> ParsePrompt(const std::string& line, int default_output_tokens) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto& prompt = Member(json, "prompt");
  const auto& output = Member(json, "output_tokens");
  if (!prompt.is_string()) return absl::InvalidArgumentError("no object with a string \"prompt\"");
  if (!output.is_null() && !(output.is_number_integer() && output > 0 && output <= 1'000'000)) {
    return absl::InvalidArgumentError("\"output_tokens\" is not in 1..1000000");
  }
  return ServePrompt{.text = prompt,
                     .output_tokens = output.is_null() ? default_output_tokens : output.get<int>()};
}

}  // namespace

std::span<const std::string_view> RandomPromptWords() { return kWords; }

std::vector<ServePrompt> RandomPrompts(const RandomPromptOptions& options) {
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<size_t> draw_word(0, std::size(kWords) - 1);
  const int num_distinct = options.num_distinct > 0
                               ? std::min(options.num_distinct, options.num_prompts)
                               : options.num_prompts;
  std::vector<ServePrompt> prompts(num_distinct);
  for (ServePrompt& prompt : prompts) {
    prompt.num_tokens = DrawLength(options.input_tokens, options.range_ratio, random);
    prompt.output_tokens = DrawLength(options.output_tokens, options.range_ratio, random);
    for (int i = 0; i < prompt.num_tokens; ++i) {
      if (i > 0) prompt.text += ' ';
      prompt.text += kWords[draw_word(random)];
    }
  }
  return TakeInTurn(prompts, 0, options.num_prompts);
}

std::vector<ServePrompt> TakeInTurn(std::span<const ServePrompt> list, size_t first, int n) {
  std::vector<ServePrompt> taken;
  for (int i = 0; i < n; ++i) taken.push_back(list[(first + i) % list.size()]);
  return taken;
}

absl::StatusOr<std::vector<ServePrompt>> ReadPrompts(const std::string& path,
                                                     int default_output_tokens) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<ServePrompt> list;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto prompt = ParsePrompt(line, default_output_tokens);
    if (!prompt.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", prompt.status().message()));
    }
    list.push_back(*std::move(prompt));
  }
  if (list.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no prompt in it"));
  return list;
}

}  // namespace lynx
