// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <filesystem>

#include "formats/gguf.h"
#include "text/tokenizer_readers.h"

namespace lynx {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return ReadTokenizerJson((std::filesystem::path(path) / "tokenizer.json").string());
  }
  if (path.ends_with(".json")) return ReadTokenizerJson(path);
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return ReadGgufTokenizer(*file);
}

std::unique_ptr<Detokenizer> Detokenizer::Create(const Tokenizer& tokenizer,
                                                 bool skip_special_tokens, bool continues_text) {
  return tokenizer.NewDetokenizer(skip_special_tokens, continues_text);
}

}  // namespace lynx
