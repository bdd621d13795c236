// SPDX-License-Identifier: Apache-2.0
// ggml's tensor names and Hugging Face's, both ways.
#pragma once

#include <string>

namespace lynx {

// Names that belong to no model tensor come back unchanged.
std::string HfTensorName(const std::string& gguf_name);
std::string GgufTensorName(const std::string& hf_name);

}  // namespace lynx
