// SPDX-License-Identifier: Apache-2.0
// A small language for model files: GGUF bytes, safetensors.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/temp_directory.h"

namespace lynx {

template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

class GgufBuilder {
 public:
  GgufBuilder& U32(const std::string& key, uint32_t v) { return Entry(key, 4, Raw(v)); }
  GgufBuilder& F32(const std::string& key, float v) { return Entry(key, 6, Raw(v)); }
  GgufBuilder& Text(const std::string& key, const std::string& v) { return Entry(key, 8, Str(v)); }
  GgufBuilder& Texts(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = Raw<uint32_t>(8) + Raw<uint64_t>(values.size());
    for (const auto& v : values) bytes += Str(v);
    return Entry(key, 9, bytes);
  }
  // Any type number with the bytes of its value.
  GgufBuilder& Entry(const std::string& key, uint32_t type, const std::string& bytes) {
    metadata_[key] = Raw(type) + bytes;
    return *this;
  }
  GgufBuilder& Remove(const std::string& key) {
    metadata_.erase(key);
    return *this;
  }
  // Innermost dimension first, as in the file. The data is zeros unless given.
  GgufBuilder& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                      size_t bytes, const std::string& data = "") {
    std::string info = Str(name) + Raw<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) info += Raw(d);
    tensors_.push_back({info + Raw(type), data.empty() ? std::string(bytes, '\0') : data});
    return *this;
  }
  GgufBuilder& F32Tensor(const std::string& name, const std::vector<uint64_t>& dims) {
    size_t bytes = 4;
    for (uint64_t d : dims) bytes *= d;
    return Tensor(name, dims, 0, bytes);
  }

  GgufBuilder& Version(uint32_t version) {
    version_ = version;
    return *this;
  }

  std::string Bytes() const {
    std::string infos, data;
    for (const StoredTensor& tensor : tensors_) {
      infos += tensor.info + Raw<uint64_t>(data.size());
      data += tensor.data;
      data.resize((data.size() + 31) / 32 * 32);
    }
    std::string out =
        "GGUF" + Raw(version_) + Raw<uint64_t>(tensors_.size()) + Raw<uint64_t>(metadata_.size());
    for (const auto& [key, value] : metadata_) out += Str(key) + value;
    out += infos;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data;
  }

  // The same model in so many files, as llama.cpp's gguf-split writes it.
  std::vector<GgufBuilder> Split(uint16_t count) const {
    std::vector<GgufBuilder> parts(count);
    parts[0].metadata_ = metadata_;
    for (uint16_t i = 0; i < count; ++i) {
      parts[i].Entry("split.no", 2, Raw(i)).Entry("split.count", 2, Raw(count));
      parts[i].Entry("split.tensors.count", 5, Raw(static_cast<int32_t>(tensors_.size())));
    }
    for (size_t t = 0; t < tensors_.size(); ++t) {
      parts[t * count / tensors_.size()].tensors_.push_back(tensors_[t]);
    }
    return parts;
  }

  // A llama of one layer: hidden 8, 2 heads of 4, 1 KV head, 12 inside, 3 tokens, tied.
  static GgufBuilder TinyLlama() {
    GgufBuilder b;
    b.Text("general.architecture", "llama")
        .U32("llama.block_count", 1)
        .U32("llama.embedding_length", 8)
        .U32("llama.feed_forward_length", 12)
        .U32("llama.attention.head_count", 2)
        .U32("llama.attention.head_count_kv", 1)
        .U32("llama.context_length", 64)
        .Texts("tokenizer.ggml.tokens", {"a", "b", "c"})
        .U32("tokenizer.ggml.eos_token_id", 2)
        .F32Tensor("token_embd.weight", {8, 3})
        .F32Tensor("output_norm.weight", {8})
        .F32Tensor("blk.0.attn_norm.weight", {8})
        .F32Tensor("blk.0.ffn_norm.weight", {8})
        .F32Tensor("blk.0.attn_q.weight", {8, 8})
        .F32Tensor("blk.0.attn_k.weight", {8, 4})
        .F32Tensor("blk.0.attn_v.weight", {8, 4})
        .F32Tensor("blk.0.attn_output.weight", {8, 8})
        .F32Tensor("blk.0.ffn_gate.weight", {8, 12})
        .F32Tensor("blk.0.ffn_up.weight", {8, 12})
        .F32Tensor("blk.0.ffn_down.weight", {12, 8});
    return b;
  }

 private:
  static std::string Str(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }

  struct StoredTensor {
    std::string info;  // all but the offset
    std::string data;
  };
  uint32_t version_ = 3;
  std::map<std::string, std::string> metadata_;
  std::vector<StoredTensor> tensors_;
};

// F32 tensors, filled number by number.
inline std::string Safetensors(
    const std::map<std::string, std::vector<int64_t>>& tensors,
    const std::function<float()>& next = [] { return 0.0f; }) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, shape] : tensors) {
    const size_t begin = data.size();
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    for (int64_t i = 0; i < count; ++i) data += Raw(next());
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  return Raw<uint64_t>(text.size()) + text + data;
}

}  // namespace lynx
