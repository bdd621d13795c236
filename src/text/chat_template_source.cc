// SPDX-License-Identifier: Apache-2.0
// Where a model keeps its chat template.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "formats/gguf.h"
#include "formats/json_object.h"
#include "text/chat_template.h"
#include "text/json_field.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;

absl::Status HasNone(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": the model has no chat template"));
}

absl::StatusOr<std::string> ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot be read"));
  return text;
}

// "chat_template" is a text, or a list of named ones of which "default" is for chatting.
absl::StatusOr<std::string> FromConfig(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(const JsonObject document, JsonObject::Read(path));
  const JsonField config(document.json(), path);
  LYNX_ASSIGN_OR_RETURN(const JsonField field, config.Find("chat_template"));
  if (field.is_null()) return HasNone(path);
  if (!field.value().is_array()) return field.String();
  for (size_t i = 0; i < field.value().size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(const std::string name, field.At(i).String("name"));
    if (name == "default") return field.At(i).String("template");
  }
  return HasNone(path);
}

absl::StatusOr<std::string> FromGguf(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  if (file->Find("tokenizer.chat_template") == nullptr) return HasNone(path);
  return file->String("tokenizer.chat_template");
}

}  // namespace

absl::StatusOr<std::string> ChatTemplate::FindSource(const std::string& model_path) {
  std::error_code error;
  if (!fs::is_directory(model_path, error)) return FromGguf(model_path);
  const fs::path folder(model_path);
  if (fs::exists(folder / "chat_template.jinja", error)) {
    return ReadText(folder / "chat_template.jinja");
  }
  if (fs::exists(folder / "tokenizer_config.json", error)) {
    return FromConfig((folder / "tokenizer_config.json").string());
  }
  return HasNone(model_path);
}

}  // namespace lynx
