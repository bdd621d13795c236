// SPDX-License-Identifier: Apache-2.0
// The tiny models that this repository carries.
#pragma once

#include <string>

namespace lynx {

// BF16 with q/k norms, a Hugging Face directory.
inline const std::string kTinyQwen3 = LYNX_SOURCE_DIR "/tests/data/tiny_models/qwen3-qknorm";
// Q4_1 with a tied head.
inline const std::string kTinyLlama =
    LYNX_SOURCE_DIR "/tests/data/tiny_models/llama-gqa-tied/gguf/llama-gqa-tied.Q4_1.gguf";

}  // namespace lynx
