// SPDX-License-Identifier: Apache-2.0
// Fills a Bpe from a vocabulary; what both readers share. Special tokens (marked in the vocabulary)
// never become results of BPE: only the matcher of added tokens may produce them.
#pragma once

#include <string>
#include <string_view>

#include "lynx/status.h"
#include "text/bpe.h"
#include "text/vocabulary.h"

namespace lynx {

struct BpeSymbolOptions {
  bool byte_level = false;     // the vocabulary is spelled in GPT-2's byte alphabet
  bool byte_fallback = false;  // use "<0x00>" … "<0xFF>" for characters without a token
  bool whole_pieces = false;   // a piece that is a token is that token
};

void AddSymbols(const Vocabulary& vocabulary, const BpeSymbolOptions& options, Bpe* bpe);

// The merge of the tokens spelled `left` and `right`. An error's message says which token is not
// in the vocabulary, without a place.
absl::Status AddMerge(const Vocabulary& vocabulary, std::string_view left, std::string_view right,
                      int rank, Bpe* bpe);

// "left right" with one space between. kInvalidArgument when it is anything else.
absl::StatusOr<std::pair<std::string_view, std::string_view>> SplitMerge(std::string_view merge);

}  // namespace lynx
