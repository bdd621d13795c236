// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.ggml.* metadata. The meaning of the fields is that of llama.cpp (llama-vocab);
// where it differs from the published tokenizer of a family (digit splits, NFC), the published one
// is followed.
#include <algorithm>
#include <numeric>

#include "formats/file_error.h"
#include "text/bpe_assembly.h"
#include "text/tokenizer_readers.h"
#include "text/utf8.h"

namespace lynx {
namespace {

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTokenType[] = "tokenizer.ggml.token_type";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr char kScores[] = "tokenizer.ggml.scores";
constexpr char kPre[] = "tokenizer.ggml.pre";
constexpr char kModel[] = "tokenizer.ggml.model";

constexpr size_t kMaxMergedBytes = 1024;
constexpr std::string_view kSpmSpace = "\u2581";

enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// llama.cpp's split for files that do not say which one they want.
constexpr const char* kDefaultSplits[] = {
    R"([\p{P}\$\+<=>\^~\|]+)",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))", R"(\p{N}+)",
    R"([0-9][0-9][0-9])"};

struct PreTokenizerFamily {
  std::string_view name;
  enum Kind { kGpt2, kDigitsThenGpt2, kLlama3, kQwen2, kTekken, kDefault } kind;
};

constexpr PreTokenizerFamily kFamilies[] = {{"default", PreTokenizerFamily::kDefault},
                                            {"gpt-2", PreTokenizerFamily::kGpt2},
                                            {"gpt2", PreTokenizerFamily::kGpt2},
                                            {"phi-2", PreTokenizerFamily::kGpt2},
                                            {"olmo", PreTokenizerFamily::kGpt2},
                                            {"smollm", PreTokenizerFamily::kDigitsThenGpt2},
                                            {"starcoder", PreTokenizerFamily::kDigitsThenGpt2},
                                            {"command-r", PreTokenizerFamily::kDigitsThenGpt2},
                                            {"llama3", PreTokenizerFamily::kLlama3},
                                            {"llama-v3", PreTokenizerFamily::kLlama3},
                                            {"llama-bpe", PreTokenizerFamily::kLlama3},
                                            {"tekken", PreTokenizerFamily::kTekken},
                                            {"qwen2", PreTokenizerFamily::kQwen2},
                                            {"deepseek-r1-qwen", PreTokenizerFamily::kQwen2}};

class GgufTokenizerReader {
 public:
  explicit GgufTokenizerReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<BpeTokenizerParts> Read() {
    LYNX_ASSIGN_OR_RETURN(const std::string model, file_.String(kModel));
    if (model != "gpt2" && model != "llama") {
      return Error(kModel, absl::StrCat("\"", Printable(model), "\" is not supported"));
    }
    const bool byte_level = model == "gpt2";
    LYNX_RETURN_IF_ERROR(ReadVocabulary(byte_level));
    LYNX_RETURN_IF_ERROR(byte_level ? ReadByteLevel() : ReadSentencePiece());
    LYNX_RETURN_IF_ERROR(ReadSpecialIds());
    return std::move(parts_);
  }

 private:
  absl::Status ReadVocabulary(bool byte_level);
  absl::Status ReadByteLevel();
  absl::StatusOr<PreTokenizerFamily::Kind> ReadFamily();
  absl::Status ReadSentencePiece();
  void AddScoredMerges(const std::vector<double>& scores);
  absl::Status ReadSpecialIds();
  absl::StatusOr<TokenId> IdOr(const char* key, TokenId fallback);
  absl::StatusOr<bool> BoolOr(const char* key, bool fallback);

  absl::Status Error(std::string_view key, std::string_view reason) const {
    return FileError(file_.path(), key, reason);
  }
  int64_t TypeOf(TokenId id) const { return types_ == nullptr ? kNormal : (*types_)[id]; }

  const GgufFile& file_;
  BpeTokenizerParts parts_;
  const std::vector<int64_t>* types_ = nullptr;
  bool add_bos_ = false;  // the family's habit, unless the file says otherwise
};

absl::Status GgufTokenizerReader::ReadVocabulary(bool byte_level) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string>* tokens, file_.Strings(kTokens));
  if (file_.Find(kTokenType) != nullptr) {
    LYNX_ASSIGN_OR_RETURN(types_, file_.Ints(kTokenType));
    if (types_->size() != tokens->size()) {
      return Error(kTokenType, absl::StrCat(types_->size(), " entries, but there are ",
                                            tokens->size(), " ", kTokens));
    }
  }
  parts_.vocabulary = Vocabulary(static_cast<int>(tokens->size()));
  for (size_t i = 0; i < tokens->size(); ++i) {
    const std::string& text = (*tokens)[i];
    const auto id = static_cast<TokenId>(i);
    if (!IsValidUtf8(text)) return Error(kTokens, absl::StrCat("token ", i, " is not UTF-8"));
    if (!parts_.vocabulary.Add(id, text)) {
      return Error(kTokens,
                   absl::StrCat("token ", i, " \"", Printable(text), "\" is there a second time"));
    }
    const int64_t type = TypeOf(id);
    const bool special = type == kControl || type == kUnknown;
    if (special) parts_.vocabulary.MarkSpecial(id);
    if (special || type == kUserDefined) {
      parts_.added_tokens.push_back({.id = id, .content = text, .special = special});
    }
  }
  parts_.decode.byte_level = byte_level;
  return absl::OkStatus();
}

absl::StatusOr<PreTokenizerFamily::Kind> GgufTokenizerReader::ReadFamily() {
  if (file_.Find(kPre) == nullptr) return PreTokenizerFamily::kDefault;
  LYNX_ASSIGN_OR_RETURN(const std::string name, file_.String(kPre));
  for (const PreTokenizerFamily& family : kFamilies) {
    if (family.name == name) return family.kind;
  }
  return Error(kPre, absl::StrCat("\"", Printable(name), "\" is not supported"));
}

absl::Status GgufTokenizerReader::ReadByteLevel() {
  LYNX_ASSIGN_OR_RETURN(const PreTokenizerFamily::Kind family, ReadFamily());
  std::vector<const char*> splits = {kGpt2Split};
  if (family == PreTokenizerFamily::kLlama3) splits = {kLlama3Split};
  if (family == PreTokenizerFamily::kQwen2) splits = {kQwen2Split};
  if (family == PreTokenizerFamily::kTekken) splits = {kTekkenSplit};
  if (family == PreTokenizerFamily::kDefault) {
    splits.assign(std::begin(kDefaultSplits), std::end(kDefaultSplits));
  }
  if (family == PreTokenizerFamily::kQwen2) parts_.normalizer.Add(UnicodeForm::kNfc);
  if (family == PreTokenizerFamily::kDigitsThenGpt2) {
    parts_.pre_tokenizer.Add({PreTokenizer::AnyDigit{}, SplitBehavior::kIsolated});
  }
  for (const char* split : splits) {
    LYNX_ASSIGN_OR_RETURN(Regex regex, Regex::Create(split));
    parts_.pre_tokenizer.Add({std::move(regex), SplitBehavior::kIsolated});
  }
  const bool of_tiktoken =
      family == PreTokenizerFamily::kLlama3 || family == PreTokenizerFamily::kTekken;
  add_bos_ = of_tiktoken;
  parts_.bpe = Bpe({.byte_level = true});
  AddSymbols(parts_.vocabulary, {.byte_level = true, .whole_pieces = of_tiktoken}, &parts_.bpe);
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string>* merges, file_.Strings(kMerges));
  for (size_t i = 0; i < merges->size(); ++i) {
    auto halves = SplitMerge((*merges)[i]);
    absl::Status added = halves.status();
    if (added.ok()) {
      added = AddMerge(parts_.vocabulary, halves->first, halves->second, static_cast<int>(i),
                       &parts_.bpe);
    }
    if (!added.ok()) return Error(kMerges, absl::StrCat("entry ", i, ": ", added.message()));
  }
  return absl::OkStatus();
}

absl::Status GgufTokenizerReader::ReadSentencePiece() {
  LYNX_ASSIGN_OR_RETURN(const bool add_space, BoolOr("tokenizer.ggml.add_space_prefix", true));
  if (add_space) parts_.normalizer.Add(Normalizer::Prepend{std::string(kSpmSpace)});
  parts_.normalizer.Add(Normalizer::Replace{std::string(1, ' '), std::string(kSpmSpace)});
  parts_.decode = {.byte_fallback = true,
                   .space_spelling = std::string(kSpmSpace),
                   .space = std::string(1, ' '),
                   .strip = std::string(1, ' '),
                   .num_strip = add_space ? 1 : 0};
  add_bos_ = true;

  LYNX_ASSIGN_OR_RETURN(const TokenId unk_id, IdOr("tokenizer.ggml.unknown_token_id", 0));
  parts_.bpe = Bpe({.unk_id = unk_id, .fuse_unk = true});
  AddSymbols(parts_.vocabulary, {.byte_fallback = true}, &parts_.bpe);

  const GgufValue* value = file_.Find(kScores);
  const auto* scores = value == nullptr ? nullptr : std::get_if<std::vector<double>>(&value->value);
  if (scores == nullptr) return Error(kScores, "missing, or not an array of floats");
  if (scores->size() != static_cast<size_t>(parts_.vocabulary.size())) {
    return Error(kScores, absl::StrCat(scores->size(), " entries, but there are ",
                                       parts_.vocabulary.size(), " ", kTokens));
  }
  AddScoredMerges(*scores);
  return absl::OkStatus();
}

// SentencePiece joins the neighbours whose union has the highest score, the leftmost of equals:
// every way to cut a token in two tokens is a merge, ranked by the score of the whole. A token
// longer than any that training makes is not looked at: its cuts would take the square of its
// length.
void GgufTokenizerReader::AddScoredMerges(const std::vector<double>& scores) {
  std::vector<TokenId> by_score;
  for (TokenId id = 0; id < parts_.vocabulary.size(); ++id) {
    if (TypeOf(id) == kNormal) by_score.push_back(id);
  }
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](TokenId a, TokenId b) { return scores[a] > scores[b]; });
  int rank = 0;
  for (size_t i = 0; i < by_score.size(); ++i) {
    const TokenId id = by_score[i];
    if (i > 0 && scores[id] != scores[by_score[i - 1]]) ++rank;
    const std::string_view text = parts_.vocabulary[id].text;
    if (text.size() > kMaxMergedBytes) continue;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = parts_.vocabulary.Find(text.substr(0, cut));
      const auto right = parts_.vocabulary.Find(text.substr(cut));
      if (left && right && TypeOf(*left) == kNormal && TypeOf(*right) == kNormal) {
        parts_.bpe.AddMerge({*left, *right, id, rank});
      }
    }
  }
}

absl::StatusOr<TokenId> GgufTokenizerReader::IdOr(const char* key, TokenId fallback) {
  if (file_.Find(key) == nullptr) return fallback;
  LYNX_ASSIGN_OR_RETURN(const int64_t id, file_.Int(key, 0, parts_.vocabulary.size() - 1));
  return static_cast<TokenId>(id);
}

absl::StatusOr<bool> GgufTokenizerReader::BoolOr(const char* key, bool fallback) {
  const GgufValue* value = file_.Find(key);
  if (value == nullptr) return fallback;
  if (const bool* flag = std::get_if<bool>(&value->value)) return *flag;
  return Error(key, "want a bool");
}

absl::Status GgufTokenizerReader::ReadSpecialIds() {
  const bool is_spm = parts_.decode.byte_fallback;
  LYNX_ASSIGN_OR_RETURN(parts_.bos_id, IdOr("tokenizer.ggml.bos_token_id", is_spm ? 1 : -1));
  LYNX_ASSIGN_OR_RETURN(parts_.eos_id, IdOr("tokenizer.ggml.eos_token_id", is_spm ? 2 : -1));
  LYNX_ASSIGN_OR_RETURN(const bool add_bos, BoolOr("tokenizer.ggml.add_bos_token", add_bos_));
  LYNX_ASSIGN_OR_RETURN(const bool add_eos, BoolOr("tokenizer.ggml.add_eos_token", false));
  if (add_bos && parts_.bos_id >= 0) parts_.prefix_ids = {parts_.bos_id};
  if (add_eos && parts_.eos_id >= 0) parts_.suffix_ids = {parts_.eos_id};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ReadGgufTokenizer(const GgufFile& file) {
  LYNX_ASSIGN_OR_RETURN(BpeTokenizerParts parts, GgufTokenizerReader(file).Read());
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace lynx
