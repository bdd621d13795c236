// SPDX-License-Identifier: Apache-2.0
// Tiny models on the CUDA back-end over the emulated device.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"

namespace lynx {

struct TinyModel {
  std::string name;
  std::string path;
};

// BF16 with q/k norms, Q4_1, and where the references are there a sliding window, and Q8_0 with
// biases.
inline std::vector<TinyModel> TinyModels() {
  const std::string own = LYNX_SOURCE_DIR "/tests/data/tiny_models/";
  const std::string more = LYNX_SHARED_DIR "/reference/tiny_models/";
  std::vector<TinyModel> models = {
      {"qwen3_bf16", own + "qwen3-qknorm"},
      {"llama_q4_1", own + "llama-gqa-tied/gguf/llama-gqa-tied.Q4_1.gguf"},
      {"mistral_window_bf16", more + "mistral-sliding-16"},
      {"qwen2_bias_q8_0", more + "qwen2-bias-outliers/gguf/qwen2-bias-outliers.Q8_0.gguf"}};
  std::erase_if(models, [](const TinyModel& m) { return !std::filesystem::exists(m.path); });
  return models;
}

inline std::unique_ptr<Backend> MakeSimtBackend() {
  char error[256] = {};
  auto backend = cuda::CudaBackend::Create({}, error, sizeof(error));
  EXPECT_NE(backend, nullptr) << error;
  return backend;
}

}  // namespace lynx
