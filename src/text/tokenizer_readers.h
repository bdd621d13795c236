// SPDX-License-Identifier: Apache-2.0
// The two places a tokenizer is read from. kInvalidArgument names file, field and reason; what is
// not understood is refused, never guessed.
#pragma once

#include <memory>
#include <string>

#include "formats/gguf.h"
#include "lynx/status.h"
#include "text/bpe_tokenizer.h"

namespace lynx {

// tokenizer.json, with the names of BOS and EOS from the tokenizer_config.json beside it.
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ReadTokenizerJson(const std::string& path);

// The tokenizer.ggml.* metadata: model "gpt2" (byte-level) and "llama" (SentencePiece BPE).
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ReadGgufTokenizer(const GgufFile& file);

}  // namespace lynx
