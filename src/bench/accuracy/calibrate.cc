// SPDX-License-Identifier: Apache-2.0
#include "bench/accuracy/calibrate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "app/anchor_table.h"
#include "app/build_engine.h"
#include "bench/accuracy/kv_accuracy.h"
#include "bench/json_lines.h"
#include "codec/anchor_widths.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

// KL over both texts of a prompt.
double MeanKl(const PromptScore& score) {
  double sum = 0;
  for (const auto* rows : {&score.drafted, &score.true_text}) {
    for (const RowScore& row : *rows) sum += row.kl;
  }
  return sum / static_cast<double>(score.drafted.size() + score.true_text.size());
}

constexpr int kFineBits = 8;

// KL when one tensor has so many bits and all others are exact.
absl::StatusOr<double> KlOfOne(const Codec& codec, const KvLayout& layout, KvAccuracy& accuracy,
                               size_t tensor, int bits) {
  SendPlan plan{{std::vector<int>(static_cast<size_t>(layout.num_layers) * 2, kNumPlanes)}};
  plan.plane_end[0][tensor] = PlanesOfBits(bits);
  LYNX_ASSIGN_OR_RETURN(const auto pages, KvPageCodec::Create(codec, plan, layout));
  LYNX_ASSIGN_OR_RETURN(const PromptScore score, accuracy.Evaluate(*pages));
  return MeanKl(score);
}

// Adds to damage[layer * 2 + kind] what 2 bits of that tensor alone cost more than 8 bits do: any
// change at all, however small, turns roundings of the forward pass and so costs something.
absl::Status AddDamage(const Codec& codec, const KvLayout& layout, KvAccuracy& accuracy,
                       std::vector<double>& damage) {
  for (size_t tensor = 0; tensor < damage.size(); ++tensor) {
    LYNX_ASSIGN_OR_RETURN(const double coarse,
                          KlOfOne(codec, layout, accuracy, tensor, kMinAnchorBits));
    LYNX_ASSIGN_OR_RETURN(const double fine, KlOfOne(codec, layout, accuracy, tensor, kFineBits));
    damage[tensor] += coarse - fine;
  }
  return absl::OkStatus();
}

void Print(const AnchorWidths& widths) {
  const std::vector<double>& damage = widths.damage;
  for (size_t layer = 0; layer < damage.size() / 2; ++layer) {
    PrintJson({{"kind", "calibrate"},
               {"layer", layer},
               {"key_damage", damage[layer * 2]},
               {"value_damage", damage[layer * 2 + 1]},
               {"key_bits", widths.bits[layer * 2]},
               {"value_bits", widths.bits[layer * 2 + 1]}});
  }
}

// Says how the table came about. The file is there as a whole or not at all.
absl::Status Write(const CalibrateOptions& options, const std::string& path,
                   const AnchorWidths& widths) {
  namespace fs = std::filesystem;
  const std::string part = absl::StrCat(path, ".part");
  std::error_code error;
  if (options.output.empty()) fs::create_directories(fs::path(path).parent_path(), error);
  std::ofstream file(part);
  file << "# lynx calibrate --model " << fs::path(options.config.model).filename().string()
       << " --bits " << options.bits << " --prompt-tokens " << options.prompt_tokens
       << " --prompts " << options.prompts << '\n'
       << ToYaml(widths);
  file.close();
  if (file) fs::rename(part, path, error);
  if (!file || error)
    return absl::InvalidArgumentError(absl::StrCat("--output: cannot write ", path));
  std::fprintf(stderr, "written: %s\n", path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCalibrate(const CalibrateOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const PromptSource source,
                        OpenPromptSource(options.corpus, options.config.model));
  LYNX_ASSIGN_OR_RETURN(const auto backend, MakeBackend(options.config, options.threads));
  LYNX_ASSIGN_OR_RETURN(const auto model,
                        Model::Load(options.config.model, *backend, kAccuracyChunk));
  LYNX_ASSIGN_OR_RETURN(const auto codec, MakeCodec("planes", *backend));
  LYNX_ASSIGN_OR_RETURN(auto prompts,
                        BuildAccuracyPrompts(source, options.prompt_tokens, options.prompts));
  LYNX_ASSIGN_OR_RETURN(const auto accuracy,
                        KvAccuracy::Create(*model, *source.tokenizer, options.prompt_tokens,
                                           NumThreads(options.threads)));
  std::vector<double> damage(static_cast<size_t>(model->config().num_layers) * 2);
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].needles.clear();
    LYNX_RETURN_IF_ERROR(accuracy->SetPrompt(prompts[i]));
    LYNX_RETURN_IF_ERROR(AddDamage(*codec, model->kv_layout(), *accuracy, damage));
    std::fprintf(stderr, "prompt %zu of %zu\n", i + 1, prompts.size());
  }
  for (double& d : damage) d = std::max(0.0, d / static_cast<double>(prompts.size()));
  AnchorWidths widths = AllocateWidths(damage, options.bits);
  widths.damage = std::move(damage);
  Print(widths);
  const std::string path =
      options.output.empty() ? KeptAnchorTable(options.config, model->hash()) : options.output;
  return path.empty() ? absl::OkStatus() : Write(options, path, widths);
}

}  // namespace lynx
