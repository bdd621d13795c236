// SPDX-License-Identifier: Apache-2.0
// Text <-> token ids.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/status.h"
#include "lynx/types.h"

namespace lynx {

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodeOptions {
  bool add_special_tokens = true;    // BOS (and EOS) as the model's post-processor says
  bool parse_special_tokens = true;  // false: the text of a special token is ordinary text
  // No special token is recognised where it would touch one of these ranges (ascending, disjoint).
  std::span<const ByteRange> protected_ranges = {};
};

class Detokenizer;

// Immutable; any thread.
class Tokenizer {
 public:
  // A Hugging Face directory (tokenizer.json), a tokenizer.json itself, or a GGUF file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  virtual ~Tokenizer() = default;

  // Never fails: bytes that the vocabulary cannot express are dropped, as Hugging Face does, and
  // invalid UTF-8 counts as U+FFFD.
  virtual std::vector<TokenId> Encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;
  // All at once, invalid UTF-8 shown as U+FFFD. Ids outside the vocabulary are skipped.
  virtual std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;
  // The exact bytes of one token as it stands inside a text (special tokens: their text).
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  // The vocabulary's spelling, e.g. "Ġthe" or "▁the".
  virtual std::string_view TokenText(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual int vocab_size() const = 0;
  virtual TokenId bos_id() const = 0;  // -1 if none
  virtual TokenId eos_id() const = 0;  // -1 if none
  virtual std::string bos_token() const = 0;
  virtual std::string eos_token() const = 0;

  // The characters of `text` whose protection keeps special tokens out of it: the first of every
  // special token's text in it, of a beginning of one at its end (white space aside), and of an
  // ending of one at its start. Ascending, disjoint.
  virtual std::vector<ByteRange> SpecialTextCharacters(std::string_view text) const = 0;

  // See Detokenizer::Create.
  virtual std::unique_ptr<Detokenizer> NewDetokenizer(bool skip_special_tokens,
                                                      bool continues_text) const = 0;
};

// Turns a growing list of ids into text: never half a character, never a byte twice; joined with
// Flush, the pieces equal Decode of all ids, or with `continues_text` what these ids add to a text
// that stands before them: SentencePiece vocabularies drop a space at the front of a text, and only
// there. One object per output stream, one thread; the tokenizer outlives it.
class Detokenizer {
 public:
  static std::unique_ptr<Detokenizer> Create(const Tokenizer& tokenizer, bool skip_special_tokens,
                                             bool continues_text = false);
  virtual ~Detokenizer() = default;
  virtual std::string Push(TokenId id) = 0;  // the text that has become complete, maybe ""
  virtual std::string Flush() = 0;           // an incomplete tail as U+FFFD
};

}  // namespace lynx
