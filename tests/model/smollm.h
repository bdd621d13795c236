// SPDX-License-Identifier: Apache-2.0
// SmolLM2-135M-Instruct: where its GGUF is, and the BF16 Hugging Face checkpoint made from it that
// the reference vectors describe.
#pragma once

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/model_files.h"
#include "kernels/cpu/dequantize.h"
#include "tests/temp_directory.h"

namespace lynx {

inline std::string SmolLmPath() {
  const char* path = std::getenv("LYNX_TEST_MODEL");
  return path != nullptr ? path : LYNX_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}
inline std::string SmolLmVectors() { return LYNX_SHARED_DIR "/reference/model"; }

// A matrix or vector of the GGUF in Hugging Face's row order, rounded to BF16.
inline std::vector<Bf16> ToBf16Tensor(const TensorInfo& tensor) {
  const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
  const int64_t k = tensor.shape.back();
  const size_t row_bytes = tensor.bytes / rows;
  std::vector<float> row(k);
  std::vector<Bf16> values;
  values.reserve(rows * k);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t stored = tensor.row_order.empty() ? i : tensor.row_order[i];
    cpu::DequantizeRow(tensor.type, tensor.data + stored * row_bytes, k, row.data());
    for (float value : row) values.push_back(ToBf16(value));
  }
  return values;
}

// Lives as long as this object.
class Bf16Checkpoint {
 public:
  explicit Bf16Checkpoint(const std::string& gguf_path) {
    auto files = ModelFiles::Open(gguf_path);
    if (!files.ok()) return;
    WriteConfig((*files)->config());
    WriteWeights(**files);
  }

  std::string path() const { return directory_.path(); }
  // Hugging Face name -> hexadecimal SHA-256 of its bytes.
  const std::map<std::string, std::string>& sha256() const { return sha256_; }

 private:
  void WriteConfig(const ModelConfig& c) const {
    const nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                                 {"num_hidden_layers", c.num_layers},
                                 {"hidden_size", c.hidden_size},
                                 {"intermediate_size", c.intermediate_size},
                                 {"num_attention_heads", c.num_heads},
                                 {"num_key_value_heads", c.num_kv_heads},
                                 {"vocab_size", c.vocab_size},
                                 {"max_position_embeddings", c.max_model_len},
                                 {"rms_norm_eps", c.rms_norm_eps},
                                 {"rope_theta", c.rope.theta},
                                 {"tie_word_embeddings", true},
                                 {"eos_token_id", c.eos_ids}};
    std::ofstream(directory_ / "config.json") << json;
  }

  void WriteWeights(const ModelFiles& files) {
    nlohmann::json header = nlohmann::json::object();
    size_t offset = 0;
    for (const TensorInfo& tensor : files.tensors()) {
      size_t bytes = sizeof(Bf16);
      for (int64_t extent : tensor.shape) bytes *= extent;
      header[tensor.name] = {
          {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
      offset += bytes;
    }
    std::ofstream out(directory_ / "model.safetensors", std::ios::binary);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof(length)) << text;
    for (const TensorInfo& tensor : files.tensors()) {
      const std::vector<Bf16> values = ToBf16Tensor(tensor);
      const auto* bytes = reinterpret_cast<const char*>(values.data());
      out.write(bytes, values.size() * sizeof(Bf16));
      sha256_[tensor.name] = Sha256(bytes, values.size() * sizeof(Bf16));
    }
  }

  static std::string Sha256(const char* bytes, size_t size) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes), size, digest);
    std::string hex;
    for (unsigned char byte : digest) absl::StrAppend(&hex, absl::Hex(byte, absl::kZeroPad2));
    return hex;
  }

  TempDirectory directory_;
  std::map<std::string, std::string> sha256_;
};

}  // namespace lynx
