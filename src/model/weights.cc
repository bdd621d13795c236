// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "formats/decode_vector.h"
#include "formats/weight_type.h"
#include "model/model_hash.h"

namespace lynx {
namespace {

WeightView ViewOf(const TensorInfo& tensor) {
  return {.type = tensor.type,
          .n = tensor.shape[0],
          .k = tensor.shape[1],
          .data = tensor.data,
          .row_bytes = tensor.bytes / static_cast<size_t>(tensor.shape[0]),
          .row_order = tensor.row_order.empty() ? nullptr : tensor.row_order.data()};
}

enum class Split : uint8_t { kNone, kOutputs, kInputs };

// The part of n that a rank holds; equal parts where n can be divided.
struct Run {
  int64_t begin, size;
};
Run RunOf(const ShardSpec& shard, int64_t n) {
  const int64_t begin = n * shard.rank / shard.size;
  return {begin, n * (shard.rank + 1) / shard.size - begin};
}

WeightView PartOf(WeightView view, Split split, const ShardSpec& shard) {
  if (split == Split::kOutputs) {
    const Run rows = RunOf(shard, view.n);
    view.n = rows.size;
    if (view.row_order != nullptr) {
      view.row_order += rows.begin;
    } else {
      view.data += rows.begin * view.row_bytes;
    }
  } else if (split == Split::kInputs) {
    const Run columns = RunOf(shard, view.k);
    const BlockShape block = WeightBlock(view.type);
    view.k = columns.size;
    view.data += columns.begin / block.elements * block.bytes;
  }
  return view;
}

class Loader {
 public:
  // packed_file: where the matrices are packed already, or null.
  Loader(const ModelFiles& files, Backend& backend, const ShardSpec& shard,
         const std::function<void(const LoadProgress&)>& progress, PackedFile* packed_file)
      : files_(files),
        backend_(backend),
        shard_(shard),
        progress_(progress),
        packed_file_(packed_file) {
    for (const TensorInfo& tensor : files.tensors()) {
      done_.bytes_total += static_cast<int64_t>(tensor.bytes);
    }
  }

  absl::StatusOr<ModelWeights> Load() {
    ModelWeights weights;
    LYNX_RETURN_IF_ERROR(LoadEmbedding(weights));
    weights.layers.resize(files_.config().num_layers);
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      LYNX_RETURN_IF_ERROR(LoadLayer(absl::StrCat("model.layers.", i, "."), weights.layers[i]));
    }
    LYNX_RETURN_IF_ERROR(LoadVector("model.norm.weight", weights.norm));
    if (!files_.config().tie_word_embeddings) {
      LYNX_RETURN_IF_ERROR(LoadLinear("lm_head", Split::kOutputs, weights.head));
    }
    weights.head_begin = RunOf(shard_, files_.config().vocab_size).begin;
    Report(done_.bytes_total - done_.bytes_done);  // tensors that no part of the model uses
    LogConversions();
    return weights;
  }

  // Every matrix's packed bytes, in the order of a file.
  std::vector<std::span<const std::byte>> TakePacked() { return std::move(packed_); }

 private:
  absl::Status LoadEmbedding(ModelWeights& weights) {
    const TensorInfo& tensor = *files_.Find("model.embed_tokens.weight");
    LYNX_RETURN_IF_ERROR(CheckMatrix(tensor));
    weights.embedding = backend_.PackEmbedding(ViewOf(tensor));
    if (weights.embedding == nullptr) return NoMemory(tensor);
    if (files_.config().tie_word_embeddings) {
      LYNX_ASSIGN_OR_RETURN(weights.head.weight, Pack(tensor, Split::kOutputs));
    }
    Report(static_cast<int64_t>(tensor.bytes));
    return absl::OkStatus();
  }

  absl::Status LoadLayer(const std::string& prefix, LayerWeights& layer) {
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    LYNX_RETURN_IF_ERROR(LoadVector(prefix + "input_layernorm.weight", layer.input_norm));
    LYNX_RETURN_IF_ERROR(LoadLinear(attention + "q_proj", Split::kOutputs, layer.q));
    LYNX_RETURN_IF_ERROR(LoadLinear(attention + "k_proj", Split::kOutputs, layer.k));
    LYNX_RETURN_IF_ERROR(LoadLinear(attention + "v_proj", Split::kOutputs, layer.v));
    LYNX_RETURN_IF_ERROR(LoadLinear(attention + "o_proj", Split::kInputs, layer.o));
    LYNX_RETURN_IF_ERROR(LoadVector(attention + "q_norm.weight", layer.q_norm));
    LYNX_RETURN_IF_ERROR(LoadVector(attention + "k_norm.weight", layer.k_norm));
    LYNX_RETURN_IF_ERROR(
        LoadVector(prefix + "post_attention_layernorm.weight", layer.post_attention_norm));
    LYNX_RETURN_IF_ERROR(LoadLinear(mlp + "gate_proj", Split::kOutputs, layer.gate));
    LYNX_RETURN_IF_ERROR(LoadLinear(mlp + "up_proj", Split::kOutputs, layer.up));
    return LoadLinear(mlp + "down_proj", Split::kInputs, layer.down);
  }

  // ModelFiles has checked that the weight exists; a bias may not.
  absl::Status LoadLinear(const std::string& name, Split split, Linear& linear) {
    const TensorInfo& tensor = *files_.Find(name + ".weight");
    LYNX_RETURN_IF_ERROR(CheckMatrix(tensor));
    LYNX_ASSIGN_OR_RETURN(linear.weight, Pack(tensor, split));
    Report(static_cast<int64_t>(tensor.bytes));
    // A sum over ranks has the bias in it once.
    if (split == Split::kInputs && shard_.rank > 0) return absl::OkStatus();
    return LoadVector(name + ".bias", linear.bias, split);
  }

  // Leaves `out` empty when the model has no such tensor.
  absl::Status LoadVector(const std::string& name, Vector& out, Split split = Split::kNone) {
    const TensorInfo* tensor = files_.Find(name);
    if (tensor == nullptr) return absl::OkStatus();
    LYNX_RETURN_IF_ERROR(Check(*tensor));
    const std::vector<float> values = DecodeVector(*tensor);
    Run part{0, static_cast<int64_t>(values.size())};
    if (split == Split::kOutputs) part = RunOf(shard_, part.size);
    const size_t bytes = part.size * sizeof(float);
    out.memory = backend_.Allocate(bytes);
    if (out.memory == nullptr) return NoMemory(*tensor);
    backend_.Upload(out.memory.get(), values.data() + part.begin, bytes);
    Report(static_cast<int64_t>(tensor->bytes));
    return absl::OkStatus();
  }

  absl::Status Check(const TensorInfo& tensor) const {
    return shard_.rank == 0 ? CheckFinite(tensor) : absl::OkStatus();
  }

  // Only matrices that have passed are ever in a file.
  absl::Status CheckMatrix(const TensorInfo& tensor) const {
    return packed_file_ == nullptr ? Check(tensor) : absl::OkStatus();
  }

  absl::Status NoMemory(const TensorInfo& tensor) const {
    return absl::ResourceExhaustedError(absl::StrCat(tensor.file, ": ", backend_.name(),
                                                     " has no memory for a tensor of ",
                                                     tensor.bytes, " bytes"));
  }

  absl::StatusOr<std::unique_ptr<Weight>> Pack(const TensorInfo& tensor, Split split) {
    const WeightView view = PartOf(ViewOf(tensor), split, shard_);
    std::unique_ptr<Weight> weight;
    if (packed_file_ != nullptr) {
      LYNX_ASSIGN_OR_RETURN(const auto packed, packed_file_->Next());
      weight = backend_.WrapPacked(view, packed);
      if (weight == nullptr) {
        return absl::DataLossError(absl::StrCat(tensor.label, ": ", packed.size(), " bytes"));
      }
    } else {
      weight = backend_.PackWeight(view);
      if (weight == nullptr) return NoMemory(tensor);
      packed_.push_back(weight->packed());
    }
    if (weight->type() != tensor.type) ++conversions_[{tensor.type, weight->type()}];
    return weight;
  }

  void Report(int64_t bytes) {
    done_.bytes_done += bytes;
    if (progress_) progress_(done_);
  }

  void LogConversions() const {
    if (shard_.rank > 0) return;
    for (const auto& [types, count] : conversions_) {
      spdlog::info("{}: {} matrices of type {} are kept as {} in memory",
                   files_.Find("model.norm.weight")->file, count, WeightTypeName(types.first),
                   WeightTypeName(types.second));
    }
  }

  const ModelFiles& files_;
  Backend& backend_;
  const ShardSpec shard_;
  const std::function<void(const LoadProgress&)>& progress_;
  PackedFile* const packed_file_;
  std::vector<std::span<const std::byte>> packed_;
  LoadProgress done_;
  std::map<std::pair<WeightType, WeightType>, int> conversions_;  // file's type, memory's type
};

uint64_t Hash(const std::string& text) { return XXH64(text.data(), text.size(), 0); }

PackedFileName NameOfPackedFile(const ModelFiles& files, const std::string& layout,
                                const ShardSpec& shard) {
  std::set<std::string> paths;
  for (const TensorInfo& tensor : files.tensors()) paths.insert(tensor.file);
  std::string model = absl::StrCat(HashModel(files));
  for (const std::string& path : paths) {
    struct stat info = {};
    stat(path.c_str(), &info);
    absl::StrAppend(&model, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
  }
  std::error_code ignored;
  const auto first = std::filesystem::absolute(*paths.begin(), ignored).lexically_normal();
  return {.place = Hash(first.string()),
          .model = Hash(model),
          .form = Hash(absl::StrCat(layout, " ", shard.rank, "/", shard.size))};
}

}  // namespace

GemmOutput Linear::To(float* y, Into into) const {
  return {.weight = weight.get(),
          .bias = bias.data(),
          .y = y,
          .ldy = weight->n(),
          .accumulate = into == Into::kAccumulate};
}

absl::Status CheckShards(const ModelFiles& files, int num_ranks) {
  const ModelConfig& config = files.config();
  const auto uneven = [num_ranks](const std::string& what, int64_t size, int64_t unit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor_parallel_size: ", num_ranks, " ranks cannot share ", what, ": ", size,
        " is not a multiple of ", num_ranks, unit == 1 ? "" : absl::StrCat(" blocks of ", unit)));
  };
  if (config.num_kv_heads % num_ranks != 0) return uneven("the KV heads", config.num_kv_heads, 1);
  if (config.intermediate_size % num_ranks != 0) {
    return uneven("intermediate_size", config.intermediate_size, 1);
  }
  for (const TensorInfo& tensor : files.tensors()) {
    const bool split_by_inputs =
        tensor.shape.size() == 2 &&  // not checked of tensors that no part of the model uses
        (tensor.name.ends_with(".o_proj.weight") || tensor.name.ends_with(".down_proj.weight"));
    const int64_t unit = WeightBlock(tensor.type).elements;
    if (split_by_inputs && tensor.shape[1] % (num_ranks * unit) != 0) {
      return uneven(absl::StrCat("the inputs of ", tensor.label), tensor.shape[1], unit);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> LoadWeights(const ModelFiles& files, Backend& backend,
                                         const ShardSpec& shard,
                                         const std::function<void(const LoadProgress&)>& progress,
                                         const std::string& cache_directory) {
  if (cache_directory.empty() || backend.packed_layout() == nullptr) {
    return Loader(files, backend, shard, progress, nullptr).Load();
  }
  const std::string directory = absl::StrCat(cache_directory, "/weights");
  const PackedFileName name = NameOfPackedFile(files, backend.packed_layout(), shard);
  absl::StatusOr<std::unique_ptr<PackedFile>> cached = PackedFile::Open(directory, name);
  if (cached.ok()) {
    auto weights = Loader(files, backend, shard, progress, cached->get()).Load();
    if (!absl::IsDataLoss(weights.status())) {
      if (weights.ok()) weights->packed_file = *std::move(cached);
      return weights;
    }
    cached = weights.status();
  }
  if (!absl::IsNotFound(cached.status())) {
    spdlog::warn("weight cache: {}; packing again", std::string(cached.status().message()));
  }
  Loader loader(files, backend, shard, progress, nullptr);
  LYNX_ASSIGN_OR_RETURN(ModelWeights weights, loader.Load());
  weights.packed_file_writer =
      std::make_unique<PackedFileWriter>(directory, name, loader.TakePacked());
  return weights;
}

size_t DecodeBytes(const ModelWeights& weights) {
  size_t bytes = 0;
  const auto add = [&bytes](const Linear& linear) {
    const BlockShape block = WeightBlock(linear.weight->type());
    bytes +=
        static_cast<size_t>(linear.weight->n() * linear.weight->k() / block.elements * block.bytes);
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      add(*linear);
    }
  }
  add(weights.head);
  return bytes;
}

}  // namespace lynx
