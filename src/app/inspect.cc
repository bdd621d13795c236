// SPDX-License-Identifier: Apache-2.0
#include "app/inspect.h"

#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "app/check_model.h"
#include "formats/model_files.h"
#include "formats/weight_type.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/codec.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

const char* ArchitectureName(Architecture a) {
  switch (a) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
  }
  return "";
}

const char* ScalingName(RopeScaling s) {
  switch (s) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kLlama3:
      return "llama3";
  }
  return "";
}

void PrintConfig(const ModelConfig& c) {
  const auto row = [](const char* key, const std::string& value) {
    std::printf("  %-22s %s\n", key, value.c_str());
  };
  row("architecture", ArchitectureName(c.architecture));
  if (!c.name.empty()) row("name", c.name);
  row("layers", absl::StrCat(c.num_layers));
  row("hidden size", absl::StrCat(c.hidden_size));
  row("intermediate size", absl::StrCat(c.intermediate_size));
  row("heads", absl::StrCat(c.num_heads, " (", c.num_kv_heads, " KV) x ", c.head_dim));
  row("vocabulary", absl::StrCat(c.vocab_size, c.tie_word_embeddings ? ", tied head" : ""));
  row("context", absl::StrCat(c.max_model_len, " tokens"));
  row("rope", absl::StrCat("theta ", c.rope.theta, ", scaling ", ScalingName(c.rope.scaling)));
  if (c.sliding_window > 0) row("sliding window", absl::StrCat(c.sliding_window));
  row("end of text ids", absl::StrJoin(c.eos_ids, ", "));
}

// Bits an element costs, measured on a page of normal numbers: the planes' metadata and exact
// plane and entropy-coded codes depend on the data.
double BitsPerElement(const Codec& codec, const PageShape& shape, int num_planes) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(size_t{kPageTokens} * shape.head_dim);
  for (Bf16& v : values) v = ToBf16(normal(random));
  PageTiles tiles;
  for (int b = 0; b < kPageBlocks; ++b) tiles[b] = values.data() + b * kBlockSize * shape.head_dim;
  std::vector<std::vector<std::byte>> planes(codec.planes().size());
  codec.Encode(shape, tiles, planes);
  size_t bytes = 0;
  for (int p = 0; p < num_planes; ++p) bytes += planes[p].size();
  return 8.0 * bytes / values.size();
}

// KV bytes of a token in all layers up to the end of a stage.
double BytesPerToken(const ModelConfig& c, const Codec& codec, const SendPlan& plan, int stage) {
  double bits = 0;
  for (int layer = 0; layer < c.num_layers; ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      bits += BitsPerElement(codec,
                             {.kind = kind,
                              .head_dim = c.head_dim,
                              .num_tokens = kPageTokens,
                              .layer = layer,
                              .num_layers = c.num_layers},
                             plan.stage_end(stage, layer, kind));
    }
  }
  return bits * c.num_kv_heads * c.head_dim / 8;
}

absl::Status PrintCodecs(const ModelConfig& c) {
  if (!IsPlaneShape({.head_dim = c.head_dim, .num_tokens = kPageTokens})) {
    std::printf("head_dim %d is not a multiple of 16 in 16..%d: no hand-off, only --colocated\n",
                c.head_dim, kMaxHeadDim);
    return absl::OkStatus();
  }
  const auto backend = cpu::CpuBackend::Create({});
  const double elements = 2.0 * c.num_layers * c.num_kv_heads * c.head_dim;
  std::printf("KV bytes per token (measured on normal data, protected tokens left out)\n");
  std::printf("  %-13s %12s %12s %12s\n", "codec", "to draft", "all", "bits/element");
  for (std::string_view name : CodecNames()) {
    LYNX_ASSIGN_OR_RETURN(const auto codec, MakeCodec(name, *backend));
    const SendPlan plan = DefaultSendPlan(*codec, c.num_layers, /*exact_target=*/true);
    const double first = BytesPerToken(c, *codec, plan, 0);
    const double all = BytesPerToken(c, *codec, plan, plan.num_stages() - 1);
    std::printf("  %-13s %12.0f %12.0f %12.2f%s\n", std::string(name).c_str(), first, all,
                8 * all / elements, codec->lossless() ? "  lossless" : "");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunInspect(const std::string& path, bool list_tensors, bool quick) {
  if (!quick) LYNX_RETURN_IF_ERROR(CheckModel(path));
  LYNX_ASSIGN_OR_RETURN(const auto files, ModelFiles::Open(path));
  std::map<std::string, std::pair<int, size_t>> by_type;
  size_t total = 0;
  for (const TensorInfo& t : files->tensors()) {
    auto& [count, bytes] = by_type[std::string(WeightTypeName(t.type))];
    ++count;
    bytes += t.bytes;
    total += t.bytes;
  }
  std::printf("%s: %s, %zu tensors, %.1f MB\n", path.c_str(), files->format().c_str(),
              files->tensors().size(), total / 1e6);
  PrintConfig(files->config());
  for (const auto& [type, entry] : by_type) {
    std::printf("  %-22s %d tensors, %.1f MB\n", type.c_str(), entry.first, entry.second / 1e6);
  }
  if (list_tensors) {
    for (const TensorInfo& t : files->tensors()) {
      std::printf("  %-52s %-5s [%s]\n", t.name.c_str(),
                  std::string(WeightTypeName(t.type)).c_str(),
                  absl::StrJoin(t.shape, ", ").c_str());
    }
  }
  return PrintCodecs(files->config());
}

}  // namespace lynx
