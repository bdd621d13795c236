// SPDX-License-Identifier: Apache-2.0
// What the configuration of a model says, before its tensors are looked at.
#pragma once

#include <string>

#include "formats/gguf.h"
#include "lynx/model_config.h"
#include "lynx/status.h"

namespace lynx {

// Whether a kind of bias must be there, must not, or is there when the file has it.
enum class Presence : uint8_t { kForbidden, kRequired, kOptional };

struct ModelDescription {
  ModelConfig config;
  Presence qkv_bias = Presence::kForbidden;
  Presence output_bias = Presence::kForbidden;  // of the attention's output projection
  Presence mlp_bias = Presence::kForbidden;
};

// From config.json and, when it exists, generation_config.json of a Hugging Face directory. The
// eos ids stay empty when neither names one (the tokenizer may).
absl::StatusOr<ModelDescription> ReadHfDescription(const std::string& directory);

// From the metadata of a GGUF file, plus what only its tensor table tells: a tied head and
// rope_freqs.weight. The eos ids are those that it names and the added tokens that end an answer.
absl::StatusOr<ModelDescription> ReadGgufDescription(const GgufFile& file);

// The length up to which positions are meaningful: yarn may stretch what the file calls its
// context beyond that.
int MaxModelLen(int64_t max_position, const RopeConfig& rope);

}  // namespace lynx
