// SPDX-License-Identifier: Apache-2.0
// Reads Hugging Face's tokenizer.json. The meaning of every field is that of the tokenizers
// library (huggingface/tokenizers).
#include <algorithm>
#include <filesystem>

#include "formats/file_error.h"
#include "formats/json_object.h"
#include "text/bpe_assembly.h"
#include "text/json_field.h"
#include "text/tokenizer_readers.h"

namespace lynx {
namespace {

using nlohmann::json;

class TokenizerJsonReader {
 public:
  TokenizerJsonReader(const json& document, const std::string& path) : root_(document, path) {}

  absl::StatusOr<BpeTokenizerParts> Read() {
    LYNX_RETURN_IF_ERROR(
        root_.WantOnly({"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"}));
    LYNX_ASSIGN_OR_RETURN(const JsonField model, root_.Get("model"));
    LYNX_ASSIGN_OR_RETURN(const JsonField normalizer, root_.Find("normalizer"));
    LYNX_ASSIGN_OR_RETURN(const JsonField pre_tokenizer, root_.Find("pre_tokenizer"));
    LYNX_ASSIGN_OR_RETURN(const JsonField post_processor, root_.Find("post_processor"));
    LYNX_ASSIGN_OR_RETURN(const JsonField decoder, root_.Find("decoder"));
    if (!normalizer.is_null()) LYNX_RETURN_IF_ERROR(ReadNormalizer(normalizer));
    if (!pre_tokenizer.is_null()) LYNX_RETURN_IF_ERROR(ReadPreTokenizer(pre_tokenizer));
    LYNX_RETURN_IF_ERROR(ReadDecoder(decoder));
    LYNX_RETURN_IF_ERROR(ReadVocabulary(model));
    LYNX_RETURN_IF_ERROR(ReadModel(model));
    if (!post_processor.is_null()) LYNX_RETURN_IF_ERROR(ReadPostProcessor(post_processor));
    return std::move(parts_);
  }

 private:
  absl::Status ReadNormalizer(const JsonField& field);
  absl::Status ReadPreTokenizer(const JsonField& field);
  absl::Status ReadSplit(const JsonField& field);
  absl::Status ReadByteLevel(const JsonField& field);
  absl::Status ReadMetaspace(const JsonField& field);
  absl::Status ReadPostProcessor(const JsonField& field);
  absl::Status ReadTemplate(const JsonField& field);
  absl::Status ReadDecoder(const JsonField& field);
  absl::Status ReadDecoderStep(const JsonField& field);
  absl::Status ReadVocabulary(const JsonField& model);
  absl::Status ReadAddedToken(const JsonField& field);
  absl::Status ReadModel(const JsonField& model);
  absl::StatusOr<Bpe::Options> ReadModelOptions(const JsonField& model);
  absl::Status ReadMerges(const JsonField& model);

  JsonField root_;
  BpeTokenizerParts parts_;
  bool byte_level_ = false;  // the pre-tokenizer spells bytes as characters
  bool has_pre_tokenizer_ = false;
  bool decoder_is_fused_ = false;
};

absl::StatusOr<std::variant<std::string, Regex>> ReadPattern(const JsonField& field) {
  LYNX_RETURN_IF_ERROR(field.WantOnly({"String", "Regex"}));
  LYNX_ASSIGN_OR_RETURN(const JsonField literal, field.Find("String"));
  if (!literal.is_null()) {
    LYNX_ASSIGN_OR_RETURN(std::string text, literal.String());
    if (text.empty()) return literal.Error("is empty");
    return std::variant<std::string, Regex>(std::move(text));
  }
  LYNX_ASSIGN_OR_RETURN(const JsonField regex, field.Get("Regex"));
  LYNX_ASSIGN_OR_RETURN(const std::string pattern, regex.String());
  auto compiled = Regex::Create(pattern);
  if (!compiled.ok()) return regex.Error(std::string(compiled.status().message()));
  return std::variant<std::string, Regex>(*std::move(compiled));
}

absl::Status TokenizerJsonReader::ReadNormalizer(const JsonField& field) {
  LYNX_ASSIGN_OR_RETURN(const std::string type, field.String("type"));
  if (type == "Sequence") {
    LYNX_ASSIGN_OR_RETURN(const JsonField steps, field.Get("normalizers"));
    LYNX_RETURN_IF_ERROR(steps.WantArray());
    for (size_t i = 0; i < steps.value().size(); ++i) {
      LYNX_RETURN_IF_ERROR(ReadNormalizer(steps.At(i)));
    }
    return absl::OkStatus();
  }
  const std::pair<std::string_view, UnicodeForm> forms[] = {{"NFC", UnicodeForm::kNfc},
                                                            {"NFD", UnicodeForm::kNfd},
                                                            {"NFKC", UnicodeForm::kNfkc},
                                                            {"NFKD", UnicodeForm::kNfkd}};
  for (const auto& [name, form] : forms) {
    if (type != name) continue;
    LYNX_RETURN_IF_ERROR(field.WantOnly({"type"}));
    parts_.normalizer.Add(form);
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "prepend"}));
    LYNX_ASSIGN_OR_RETURN(std::string text, field.String("prepend"));
    parts_.normalizer.Add(Normalizer::Prepend{std::move(text)});
    return absl::OkStatus();
  }
  if (type == "Replace") {
    LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "pattern", "content"}));
    LYNX_ASSIGN_OR_RETURN(const JsonField pattern_field, field.Get("pattern"));
    LYNX_ASSIGN_OR_RETURN(auto pattern, ReadPattern(pattern_field));
    LYNX_ASSIGN_OR_RETURN(std::string content, field.String("content"));
    parts_.normalizer.Add(Normalizer::Replace{std::move(pattern), std::move(content)});
    return absl::OkStatus();
  }
  return field.Error(absl::StrCat("the type \"", Printable(type), "\" is not supported"));
}

absl::Status TokenizerJsonReader::ReadPreTokenizer(const JsonField& field) {
  LYNX_ASSIGN_OR_RETURN(const std::string type, field.String("type"));
  if (byte_level_) return field.Error("comes after ByteLevel, which must be the last");
  if (type == "Sequence") {
    LYNX_ASSIGN_OR_RETURN(const JsonField steps, field.Get("pretokenizers"));
    LYNX_RETURN_IF_ERROR(steps.WantArray());
    for (size_t i = 0; i < steps.value().size(); ++i) {
      LYNX_RETURN_IF_ERROR(ReadPreTokenizer(steps.At(i)));
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    LYNX_RETURN_IF_ERROR(ReadByteLevel(field));
  } else if (type == "Split") {
    LYNX_RETURN_IF_ERROR(ReadSplit(field));
  } else if (type == "Metaspace") {
    LYNX_RETURN_IF_ERROR(ReadMetaspace(field));
  } else if (type == "Digits") {
    LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "individual_digits"}));
    LYNX_ASSIGN_OR_RETURN(const bool individual, field.Bool("individual_digits", false));
    parts_.pre_tokenizer.Add({PreTokenizer::AnyDigit{},
                              individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else {
    return field.Error(absl::StrCat("the type \"", Printable(type), "\" is not supported"));
  }
  has_pre_tokenizer_ = true;
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadByteLevel(const JsonField& field) {
  LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  LYNX_ASSIGN_OR_RETURN(const bool prefix_space, field.Bool("add_prefix_space", true));
  LYNX_ASSIGN_OR_RETURN(const bool use_regex, field.Bool("use_regex", true));
  if (prefix_space && has_pre_tokenizer_) {
    return field.Error("add_prefix_space after other pre-tokenizers is not supported");
  }
  if (prefix_space) parts_.prefix = " ";
  if (use_regex) {
    LYNX_ASSIGN_OR_RETURN(Regex regex, Regex::Create(kGpt2Split));
    parts_.pre_tokenizer.Add({std::move(regex), SplitBehavior::kIsolated});
  }
  byte_level_ = true;
  return absl::OkStatus();
}

// Spaces become a symbol, and one more is put before the text. Older files say add_prefix_space
// instead of prepend_scheme.
absl::Status TokenizerJsonReader::ReadMetaspace(const JsonField& field) {
  LYNX_RETURN_IF_ERROR(
      field.WantOnly({"type", "replacement", "add_prefix_space", "prepend_scheme", "split"}));
  if (has_pre_tokenizer_) return field.Error("Metaspace after others is not supported");
  LYNX_ASSIGN_OR_RETURN(const std::string symbol, field.String("replacement"));
  if (symbol.empty()) return field.Error("replacement is empty");
  parts_.spelling.Add(Normalizer::Replace{std::string(1, ' '), symbol});
  LYNX_ASSIGN_OR_RETURN(const bool adds, field.Bool("add_prefix_space", true));
  std::string scheme = adds ? "always" : "never";
  LYNX_ASSIGN_OR_RETURN(const JsonField scheme_field, field.Find("prepend_scheme"));
  if (!scheme_field.is_null()) {
    LYNX_ASSIGN_OR_RETURN(scheme, scheme_field.String());
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return scheme_field.Error(absl::StrCat("\"", Printable(scheme), "\" is not supported"));
  }
  if (scheme != "never") parts_.prefix = symbol;
  parts_.prefixes_begin_only = scheme == "first";
  LYNX_ASSIGN_OR_RETURN(const bool split, field.Bool("split", true));
  if (split) parts_.pre_tokenizer.Add({symbol, SplitBehavior::kMergedWithNext});
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadSplit(const JsonField& field) {
  LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "pattern", "behavior", "invert"}));
  LYNX_ASSIGN_OR_RETURN(const JsonField pattern_field, field.Get("pattern"));
  LYNX_ASSIGN_OR_RETURN(auto pattern, ReadPattern(pattern_field));
  LYNX_ASSIGN_OR_RETURN(const std::string behavior, field.String("behavior"));
  LYNX_ASSIGN_OR_RETURN(const bool invert, field.Bool("invert", false));
  const std::pair<std::string_view, SplitBehavior> behaviors[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [name, value] : behaviors) {
    if (behavior != name) continue;
    PreTokenizer::Step step{PreTokenizer::AnyDigit{}, value, invert};
    if (auto* literal = std::get_if<std::string>(&pattern)) {
      step.pattern = std::move(*literal);
    } else {
      step.pattern = std::get<Regex>(std::move(pattern));
    }
    parts_.pre_tokenizer.Add(std::move(step));
    return absl::OkStatus();
  }
  return field.Error(absl::StrCat("the behavior \"", Printable(behavior), "\" is not supported"));
}

absl::Status TokenizerJsonReader::ReadPostProcessor(const JsonField& field) {
  LYNX_ASSIGN_OR_RETURN(const std::string type, field.String("type"));
  if (type == "Sequence") {
    LYNX_ASSIGN_OR_RETURN(const JsonField steps, field.Get("processors"));
    LYNX_RETURN_IF_ERROR(steps.WantArray());
    for (size_t i = 0; i < steps.value().size(); ++i) {
      LYNX_RETURN_IF_ERROR(ReadPostProcessor(steps.At(i)));
    }
    return absl::OkStatus();
  }
  // ByteLevel here corrects offsets, which nobody asks us for.
  if (type == "ByteLevel") return absl::OkStatus();
  if (type == "TemplateProcessing") return ReadTemplate(field);
  return field.Error(absl::StrCat("the type \"", Printable(type), "\" is not supported"));
}

absl::Status TokenizerJsonReader::ReadTemplate(const JsonField& field) {
  LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "single", "pair", "special_tokens"}));
  LYNX_ASSIGN_OR_RETURN(const JsonField single, field.Get("single"));
  LYNX_ASSIGN_OR_RETURN(const JsonField special_tokens, field.Get("special_tokens"));
  LYNX_RETURN_IF_ERROR(single.WantArray());
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen_text = false;
  for (size_t i = 0; i < single.value().size(); ++i) {
    const JsonField piece = single.At(i);
    LYNX_RETURN_IF_ERROR(piece.WantOnly({"Sequence", "SpecialToken"}));
    if (piece.value().contains("Sequence")) {
      if (std::exchange(seen_text, true)) return piece.Error("the text comes a second time");
      continue;
    }
    LYNX_ASSIGN_OR_RETURN(const JsonField token, piece.Get("SpecialToken"));
    LYNX_ASSIGN_OR_RETURN(const std::string name, token.String("id"));
    LYNX_ASSIGN_OR_RETURN(const JsonField entry, special_tokens.Get(name));
    LYNX_ASSIGN_OR_RETURN(const JsonField ids, entry.Get("ids"));
    LYNX_RETURN_IF_ERROR(ids.WantArray());
    for (size_t j = 0; j < ids.value().size(); ++j) {
      LYNX_ASSIGN_OR_RETURN(const int64_t id, ids.At(j).Int(0, parts_.vocabulary.size() - 1));
      (seen_text ? after : before).push_back(static_cast<TokenId>(id));
    }
  }
  if (!seen_text) return single.Error("has no place for the text");
  parts_.prefix_ids.insert(parts_.prefix_ids.begin(), before.begin(), before.end());
  parts_.suffix_ids.insert(parts_.suffix_ids.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadDecoder(const JsonField& field) {
  if (field.is_null()) return field.Error("missing; want ByteLevel or a Sequence");
  LYNX_ASSIGN_OR_RETURN(const std::string type, field.String("type"));
  if (type == "ByteLevel") {
    parts_.decode.byte_level = true;
    return absl::OkStatus();
  }
  if (type != "Sequence") {
    return field.Error(absl::StrCat("the type \"", Printable(type), "\" is not supported"));
  }
  LYNX_ASSIGN_OR_RETURN(const JsonField steps, field.Get("decoders"));
  LYNX_RETURN_IF_ERROR(steps.WantArray());
  const size_t num_steps = steps.value().size();
  for (size_t i = 0; i < num_steps; ++i) {
    LYNX_ASSIGN_OR_RETURN(const std::string step, steps.At(i).String("type"));
    if (num_steps == 1 && step == "ByteLevel") return ReadDecoder(steps.At(i));
    LYNX_RETURN_IF_ERROR(ReadDecoderStep(steps.At(i)));
  }
  if (!decoder_is_fused_) return field.Error("a Sequence without Fuse is not supported");
  return absl::OkStatus();
}

// In the order Replace, ByteFallback, Fuse, Strip; other orders mean other things.
absl::Status TokenizerJsonReader::ReadDecoderStep(const JsonField& field) {
  LYNX_ASSIGN_OR_RETURN(const std::string type, field.String("type"));
  DecodeRules& rules = parts_.decode;
  if (type == "Replace" && !rules.byte_fallback && !decoder_is_fused_ &&
      rules.space_spelling.empty()) {
    LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "pattern", "content"}));
    LYNX_ASSIGN_OR_RETURN(const JsonField pattern_field, field.Get("pattern"));
    LYNX_ASSIGN_OR_RETURN(rules.space_spelling, pattern_field.String("String"));
    LYNX_ASSIGN_OR_RETURN(rules.space, field.String("content"));
    return absl::OkStatus();
  }
  if (type == "ByteFallback" && !decoder_is_fused_) {
    rules.byte_fallback = true;
    return absl::OkStatus();
  }
  if (type == "Fuse") {
    decoder_is_fused_ = true;
    return absl::OkStatus();
  }
  if (type == "Strip" && decoder_is_fused_ && rules.num_strip == 0) {
    LYNX_RETURN_IF_ERROR(field.WantOnly({"type", "content", "start", "stop"}));
    LYNX_ASSIGN_OR_RETURN(const JsonField start, field.Get("start"));
    LYNX_ASSIGN_OR_RETURN(const JsonField stop, field.Get("stop"));
    LYNX_RETURN_IF_ERROR(stop.Int(0, 0).status());
    LYNX_ASSIGN_OR_RETURN(const int64_t num_strip, start.Int(0, 1024));
    LYNX_ASSIGN_OR_RETURN(rules.strip, field.String("content"));
    if (rules.strip.empty()) return field.Error("content is empty");
    rules.num_strip = static_cast<int>(num_strip);
    return absl::OkStatus();
  }
  return field.Error(
      absl::StrCat("the type \"", Printable(type), "\" is not supported at this place"));
}

absl::Status TokenizerJsonReader::ReadVocabulary(const JsonField& model) {
  LYNX_ASSIGN_OR_RETURN(const JsonField vocab, model.Get("vocab"));
  LYNX_RETURN_IF_ERROR(vocab.WantObject());
  LYNX_ASSIGN_OR_RETURN(const JsonField added, root_.Find("added_tokens"));
  if (!added.is_null()) LYNX_RETURN_IF_ERROR(added.WantArray());
  // Holes are allowed, tables much larger than what they hold are not.
  const auto num_tokens = static_cast<int64_t>(vocab.value().size() + added.value().size());
  const int64_t max_id = 2 * num_tokens + 65536;
  int64_t largest = -1;
  std::vector<std::pair<TokenId, std::string>> tokens;
  for (const auto& [text, value] : vocab.value().items()) {
    LYNX_ASSIGN_OR_RETURN(const JsonField token, vocab.Get(text));
    LYNX_ASSIGN_OR_RETURN(const int64_t id, token.Int(0, max_id));
    tokens.emplace_back(static_cast<TokenId>(id), text);
    largest = std::max(largest, id);
  }
  for (size_t i = 0; i < added.value().size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(const JsonField id_field, added.At(i).Get("id"));
    LYNX_ASSIGN_OR_RETURN(const int64_t id, id_field.Int(0, max_id));
    largest = std::max(largest, id);
  }
  parts_.vocabulary = Vocabulary(static_cast<int>(largest + 1));
  for (auto& [id, text] : tokens) {
    if (parts_.vocabulary.Has(id)) {
      return vocab.Error(absl::StrCat("the id ", id, " belongs to two tokens"));
    }
    parts_.vocabulary.Add(id, std::move(text));
  }
  for (size_t i = 0; i < added.value().size(); ++i) {
    LYNX_RETURN_IF_ERROR(ReadAddedToken(added.At(i)));
  }
  return absl::OkStatus();
}

absl::Status TokenizerJsonReader::ReadAddedToken(const JsonField& field) {
  LYNX_RETURN_IF_ERROR(field.WantOnly(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  LYNX_ASSIGN_OR_RETURN(token.content, field.String("content"));
  LYNX_ASSIGN_OR_RETURN(token.special, field.Bool("special", false));
  LYNX_ASSIGN_OR_RETURN(token.single_word, field.Bool("single_word", false));
  LYNX_ASSIGN_OR_RETURN(token.lstrip, field.Bool("lstrip", false));
  LYNX_ASSIGN_OR_RETURN(token.rstrip, field.Bool("rstrip", false));
  LYNX_ASSIGN_OR_RETURN(token.normalized, field.Bool("normalized", !token.special));
  token.id = field.value()["id"].get<TokenId>();
  if (const auto known = parts_.vocabulary.Find(token.content)) {
    if (*known != token.id) {
      return field.Error(absl::StrCat("the id of \"", Printable(token.content), "\" is ", token.id,
                                      ", elsewhere ", *known));
    }
  } else if (!parts_.vocabulary.Add(token.id, token.content)) {
    return field.Error(absl::StrCat("the id ", token.id, " belongs to two tokens"));
  }
  if (token.special) parts_.vocabulary.MarkSpecial(token.id);
  parts_.added_tokens.push_back(std::move(token));
  return absl::OkStatus();
}

absl::StatusOr<Bpe::Options> TokenizerJsonReader::ReadModelOptions(const JsonField& model) {
  LYNX_RETURN_IF_ERROR(model.WantOnly({"type", "dropout", "unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                       "ignore_merges", "vocab", "merges"}));
  if (model.value().contains("type")) {
    LYNX_ASSIGN_OR_RETURN(const std::string type, model.String("type"));
    if (type != "BPE") {
      return model.Error(
          absl::StrCat("the type \"", Printable(type), "\" is not supported, want \"BPE\""));
    }
  }
  LYNX_ASSIGN_OR_RETURN(const JsonField dropout, model.Find("dropout"));
  if (!dropout.is_null() && dropout.value() != 0) return dropout.Error("is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    LYNX_ASSIGN_OR_RETURN(const JsonField affix, model.Find(key));
    if (!affix.is_null() && affix.value() != "") return affix.Error("is not supported");
  }
  Bpe::Options options{.byte_level = byte_level_};
  LYNX_ASSIGN_OR_RETURN(options.fuse_unk, model.Bool("fuse_unk", false));
  LYNX_ASSIGN_OR_RETURN(const JsonField unk, model.Find("unk_token"));
  if (!unk.is_null()) {
    LYNX_ASSIGN_OR_RETURN(const std::string text, unk.String());
    const auto id = parts_.vocabulary.Find(text);
    if (!id) return unk.Error(absl::StrCat("\"", Printable(text), "\" is not in the vocabulary"));
    options.unk_id = *id;
  }
  return options;
}

absl::Status TokenizerJsonReader::ReadModel(const JsonField& model) {
  LYNX_ASSIGN_OR_RETURN(const Bpe::Options options, ReadModelOptions(model));
  LYNX_ASSIGN_OR_RETURN(const bool byte_fallback, model.Bool("byte_fallback", false));
  LYNX_ASSIGN_OR_RETURN(const bool ignore_merges, model.Bool("ignore_merges", false));
  parts_.bpe = Bpe(options);
  AddSymbols(
      parts_.vocabulary,
      {.byte_level = byte_level_, .byte_fallback = byte_fallback, .whole_pieces = ignore_merges},
      &parts_.bpe);
  return ReadMerges(model);
}

// A merge is "left right" or ["left", "right"].
absl::Status TokenizerJsonReader::ReadMerges(const JsonField& model) {
  LYNX_ASSIGN_OR_RETURN(const JsonField merges, model.Get("merges"));
  LYNX_RETURN_IF_ERROR(merges.WantArray());
  for (size_t i = 0; i < merges.value().size(); ++i) {
    const json& merge = merges.value()[i];
    std::pair<std::string_view, std::string_view> pair;
    if (merge.is_string()) {
      const auto halves = SplitMerge(merge.get_ref<const std::string&>());
      if (!halves.ok()) return merges.At(i).Error(std::string(halves.status().message()));
      pair = *halves;
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      pair = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    } else {
      return merges.At(i).Error("want a merge of two tokens");
    }
    const absl::Status added =
        AddMerge(parts_.vocabulary, pair.first, pair.second, static_cast<int>(i), &parts_.bpe);
    if (!added.ok()) return merges.At(i).Error(std::string(added.message()));
  }
  return absl::OkStatus();
}

// A token's name in tokenizer_config.json: a string, or an object with its content.
absl::StatusOr<TokenId> NamedToken(const JsonField& config, const std::string& key,
                                   const Vocabulary& vocabulary) {
  LYNX_ASSIGN_OR_RETURN(JsonField name, config.Find(key));
  if (name.is_null()) return -1;
  std::string text;
  if (name.value().is_object()) {
    LYNX_ASSIGN_OR_RETURN(text, name.String("content"));
  } else {
    LYNX_ASSIGN_OR_RETURN(text, name.String());
  }
  return vocabulary.Find(text).value_or(-1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ReadTokenizerJson(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(const JsonObject document, JsonObject::Read(path));
  LYNX_ASSIGN_OR_RETURN(BpeTokenizerParts parts, TokenizerJsonReader(document.json(), path).Read());
  const auto config_path =
      (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  std::error_code ignored;
  if (std::filesystem::exists(config_path, ignored)) {
    LYNX_ASSIGN_OR_RETURN(const JsonObject config_document, JsonObject::Read(config_path));
    const JsonField config(config_document.json(), config_path);
    LYNX_ASSIGN_OR_RETURN(parts.bos_id, NamedToken(config, "bos_token", parts.vocabulary));
    LYNX_ASSIGN_OR_RETURN(parts.eos_id, NamedToken(config, "eos_token", parts.vocabulary));
  }
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace lynx
