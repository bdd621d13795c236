// SPDX-License-Identifier: Apache-2.0
#include "formats/model_files.h"

#include <filesystem>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "formats/expected_tensors.h"
#include "formats/file_error.h"
#include "formats/gguf.h"
#include "formats/gguf_names.h"
#include "formats/json_object.h"
#include "formats/mapped_file.h"
#include "formats/model_description.h"
#include "formats/safetensors.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;

// The tensors of a model and whatever keeps their memory mapped.
class LoadedFiles final : public ModelFiles {
 public:
  const ModelConfig& config() const override { return description.config; }
  const TensorInfo* Find(const std::string& name) const override {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensor_list[it->second];
  }
  const std::vector<TensorInfo>& tensors() const override { return tensor_list; }
  std::string format() const override { return gguf != nullptr ? "GGUF" : "safetensors"; }

  // Indexes tensor_list, which must not change any more.
  absl::Status BuildIndex() {
    for (size_t i = 0; i < tensor_list.size(); ++i) {
      if (!by_name_.emplace(tensor_list[i].name, i).second) {
        return FileError(tensor_list[i].file, "tensor " + Printable(tensor_list[i].name),
                         "duplicate name");
      }
    }
    return absl::OkStatus();
  }

  ModelDescription description;
  std::vector<TensorInfo> tensor_list;
  std::unique_ptr<GgufFile> gguf;                   // a GGUF model
  std::vector<std::unique_ptr<MappedFile>> shards;  // a safetensors model

 private:
  std::unordered_map<std::string, size_t> by_name_;
};

// llama.cpp's converter interleaves the two halves of every head of Q and K; output i of the
// original matrix is row order[i] of the file.
std::vector<int32_t> UndoInterleaving(int num_heads, int head_dim) {
  std::vector<int32_t> order(static_cast<size_t>(num_heads) * head_dim);
  const int half = head_dim / 2;
  for (size_t i = 0; i < order.size(); ++i) {
    const int channel = static_cast<int>(i % head_dim);
    const auto head_begin = static_cast<int32_t>(i) - channel;
    order[i] = head_begin + 2 * (channel % half) + channel / half;
  }
  return order;
}

void UndoPermutation(LoadedFiles& files) {
  const ModelConfig& config = files.config();
  if (config.architecture != Architecture::kLlama) return;
  const auto q_order = UndoInterleaving(config.num_heads, config.head_dim);
  const auto k_order = UndoInterleaving(config.num_kv_heads, config.head_dim);
  for (TensorInfo& tensor : files.tensor_list) {
    if (tensor.name.find(".q_proj.") != std::string::npos) tensor.row_order = q_order;
    if (tensor.name.find(".k_proj.") != std::string::npos) tensor.row_order = k_order;
  }
}

absl::StatusOr<std::unique_ptr<ModelFiles>> OpenGguf(const std::string& path) {
  auto files = std::make_unique<LoadedFiles>();
  LYNX_ASSIGN_OR_RETURN(files->gguf, GgufFile::Open(path));
  LYNX_ASSIGN_OR_RETURN(files->description, ReadGgufDescription(*files->gguf));
  for (const GgufTensor& stored : files->gguf->tensors()) {
    TensorInfo& tensor = files->tensor_list.emplace_back();
    tensor.name = HfTensorName(stored.name);
    tensor.label = stored.name;
    tensor.type = stored.type;
    tensor.shape = stored.shape;
    tensor.data = stored.data;
    tensor.bytes = stored.bytes;
    tensor.file = stored.file;
  }
  LYNX_RETURN_IF_ERROR(files->BuildIndex());
  const LoadedFiles& view = *files;
  LYNX_RETURN_IF_ERROR(CheckTensors({
      .description = view.description,
      .find = [&view](const std::string& name) { return view.Find(name); },
      .label = GgufTensorName,
      .file = path,
      .config_file = "the metadata",
  }));
  UndoPermutation(*files);
  return files;
}

// The shard of every tensor, from model.safetensors.index.json. Shards are plain names: nothing
// in an index makes us open a path outside the directory.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(JsonObject index, JsonObject::Read(path));
  LYNX_ASSIGN_OR_RETURN(JsonObject weight_map, index.Object("weight_map"));
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, value] : weight_map.json().items()) {
    LYNX_ASSIGN_OR_RETURN(std::string shard, weight_map.String(tensor));
    const bool is_plain = !shard.empty() && shard.find('/') == std::string::npos &&
                          shard.find('\0') == std::string::npos && shard[0] != '.';
    if (!is_plain) {
      return weight_map.Error(Printable(tensor),
                              absl::StrCat("path ", Printable(shard), " is not a file name"));
    }
    shards.emplace(tensor, std::move(shard));
  }
  return shards;
}

absl::Status ReadShards(const std::string& directory, const std::string& index_path,
                        LoadedFiles& files) {
  LYNX_ASSIGN_OR_RETURN(auto weight_map, ReadWeightMap(index_path));
  std::set<std::string> shard_names;
  for (const auto& [tensor, shard] : weight_map) shard_names.insert(shard);
  for (const std::string& shard : shard_names) {
    LYNX_ASSIGN_OR_RETURN(auto file, MappedFile::Open(directory + "/" + shard));
    LYNX_ASSIGN_OR_RETURN(auto tensors, ReadSafetensors(*file));
    files.shards.push_back(std::move(file));
    for (TensorInfo& tensor : tensors) {
      const auto listed = weight_map.find(tensor.name);
      if (listed == weight_map.end() || listed->second != shard) continue;
      files.tensor_list.push_back(std::move(tensor));
      weight_map.erase(listed);
    }
  }
  if (weight_map.empty()) return absl::OkStatus();
  const auto& [tensor, shard] = *weight_map.begin();
  return FileError(index_path, "tensor " + Printable(tensor), "is not in " + Printable(shard));
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Most repositories of GGUF files hold several of one model: which one is the user's choice.
absl::Status CheckNotOfGguf(const std::string& directory) {
  if (Exists(directory + "/config.json")) return absl::OkStatus();
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".gguf") names.insert(it->path().filename());
  }
  if (names.empty()) return absl::OkStatus();
  return FileError(directory, "config.json",
                   absl::StrCat("missing; of the GGUF files here name one, as ", directory, "/",
                                Printable(*names.begin())));
}

absl::StatusOr<std::unique_ptr<ModelFiles>> OpenDirectory(const std::string& directory) {
  LYNX_RETURN_IF_ERROR(CheckNotOfGguf(directory));
  auto files = std::make_unique<LoadedFiles>();
  LYNX_ASSIGN_OR_RETURN(files->description, ReadHfDescription(directory));
  std::string weights = directory + "/model.safetensors";
  if (Exists(weights)) {
    LYNX_ASSIGN_OR_RETURN(auto file, MappedFile::Open(weights));
    LYNX_ASSIGN_OR_RETURN(files->tensor_list, ReadSafetensors(*file));
    files->shards.push_back(std::move(file));
  } else if (Exists(weights + ".index.json")) {
    weights += ".index.json";
    LYNX_RETURN_IF_ERROR(ReadShards(directory, weights, *files));
  } else {
    return FileError(directory, "weights",
                     "neither model.safetensors nor model.safetensors.index.json exists");
  }
  LYNX_RETURN_IF_ERROR(files->BuildIndex());
  const LoadedFiles& view = *files;
  LYNX_RETURN_IF_ERROR(CheckTensors({
      .description = view.description,
      .find = [&view](const std::string& name) { return view.Find(name); },
      .label = [](const std::string& name) { return name; },
      .file = weights,
      .config_file = "config.json",
  }));
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFiles>> ModelFiles::Open(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return absl::InvalidArgumentError(path + ": no such file or directory");
  }
  if (fs::is_directory(status)) return OpenDirectory(path);
  return OpenGguf(path);
}

}  // namespace lynx
