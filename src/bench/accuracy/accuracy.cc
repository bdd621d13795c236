// SPDX-License-Identifier: Apache-2.0
// `lynx bench accuracy`: what each codec's cache does to the model's answers, against the exact
// cache, over prompts of real text. One JSON object per codec, planes and prompt length.
#include "bench/accuracy/accuracy.h"

#include <chrono>
#include <cstdio>

#include "app/build_engine.h"
#include "bench/accuracy/kv_accuracy.h"
#include "bench/accuracy/metrics.h"
#include "bench/accuracy/prompts.h"
#include "bench/json_lines.h"
#include "codec/anchor_widths.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

// A codec and the planes of it that are sent.
struct Cell {
  std::string codec;
  std::string planes;
  std::unique_ptr<KvPageCodec> pages;
  std::vector<PromptScore> scores;
};

SendPlan OneStage(int num_layers, int key_planes, int value_planes) {
  std::vector<int> ends;
  for (int layer = 0; layer < num_layers; ++layer) {
    ends.push_back(key_planes);
    ends.push_back(value_planes);
  }
  return {.plane_end = {std::move(ends)}};
}

// "k4v2": 4 bits of keys and 2 of values; "exact": all planes; a file of `lynx calibrate`.
absl::StatusOr<SendPlan> PlanOfWidths(const std::string& widths, int num_layers) {
  if (widths == "exact") return OneStage(num_layers, kNumPlanes, kNumPlanes);
  if (widths.ends_with(".yaml")) {
    LYNX_ASSIGN_OR_RETURN(const AnchorWidths table, ReadAnchorWidths(widths, num_layers));
    return SendPlan{{AnchorSendPlan(table, /*exact_target=*/false).plane_end[0]}};
  }
  const bool shaped = widths.size() == 4 && widths[0] == 'k' && widths[2] == 'v';
  const int key = shaped ? PlanesOfBits(widths[1] - '0') : -1;
  const int value = shaped ? PlanesOfBits(widths[3] - '0') : -1;
  if (key < 0 || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--planes: '", widths,
                     "' is neither exact, a .yaml file, nor k and v with 2, 3, 4 or 8 bits each"));
  }
  return OneStage(num_layers, key, value);
}

class AccuracyBench {
 public:
  AccuracyBench(const BenchAccuracyOptions& options, Model& model)
      : options_(options), model_(model) {}

  absl::Status AddCodec(const std::string& name) {
    LYNX_ASSIGN_OR_RETURN(auto codec, MakeCodec(name, model_.backend()));
    const int num_layers = model_.config().num_layers;
    if (name == "planes") {
      for (const std::string& widths : options_.planes) {
        LYNX_ASSIGN_OR_RETURN(const SendPlan plan, PlanOfWidths(widths, num_layers));
        LYNX_RETURN_IF_ERROR(AddCell(*codec, widths, plan));
      }
    } else {
      for (int n = 1; n <= static_cast<int>(codec->planes().size()); ++n) {
        LYNX_RETURN_IF_ERROR(AddCell(*codec, absl::StrCat(n), OneStage(num_layers, n, n)));
      }
    }
    codecs_.push_back(std::move(codec));
    return absl::OkStatus();
  }

  // All cells over prompts of one length.
  absl::Status Measure(const std::vector<AccuracyPrompt>& prompts, int num_tokens,
                       KvAccuracy& accuracy) {
    for (Cell& cell : cells_) cell.scores.clear();
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      LYNX_RETURN_IF_ERROR(accuracy.SetPrompt(prompts[i]));
      for (Cell& cell : cells_) {
        LYNX_ASSIGN_OR_RETURN(PromptScore score, accuracy.Evaluate(*cell.pages));
        cell.scores.push_back(std::move(score));
      }
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      std::fprintf(stderr, "%d tokens: prompt %zu of %zu, %.1f s\n", num_tokens, i + 1,
                   prompts.size(), seconds);
    }
    for (const Cell& cell : cells_) Print(cell, num_tokens);
    return absl::OkStatus();
  }

 private:
  absl::Status AddCell(const Codec& codec, const std::string& planes, const SendPlan& plan) {
    LYNX_ASSIGN_OR_RETURN(auto pages, KvPageCodec::Create(codec, plan, model_.kv_layout()));
    cells_.push_back({std::string(codec.name()), planes, std::move(pages), {}});
    return absl::OkStatus();
  }

  static nlohmann::ordered_json NameOf(const char* kind, const Cell& cell, int num_tokens) {
    return {{"kind", kind},
            {"codec", cell.codec},
            {"planes", cell.planes},
            {"prompt_tokens", num_tokens}};
  }

  void Print(const Cell& cell, int num_tokens) const {
    const AccuracySummary s = Summarize(cell.scores);
    SquaredError error[2];
    for (size_t i = 0; i < s.layer_error.size(); ++i) error[i % 2] += s.layer_error[i];
    nlohmann::ordered_json line = NameOf("accuracy", cell, num_tokens);
    line["n"] = s.num_prompts;
    line["bits_per_element"] = s.bits_per_element;
    line["agreement"] = s.agreement;
    line["agreement_sd"] = s.agreement_sd;
    line["kl"] = s.kl;
    line["kl_first"] = s.kl_first;
    line["ppl_ratio"] = s.ppl_ratio;
    line["true_agreement"] = s.true_agreement;
    line["accepted_16"] = s.accepted_16;
    line["accepted_32"] = s.accepted_32;
    line["accepted_64"] = s.accepted_64;
    line["runs"] = s.runs;
    if (s.num_needles > 0) line["needle"] = double(s.num_needles_kept) / s.num_needles;
    line["needles_exact"] = s.num_needles;
    line["needles_asked"] = s.num_prompts * kNumNeedles;
    line["firm_share"] = s.firm_share;
    line["firm_wrong"] = s.firm_wrong;
    line["key_nmse"] = error[0].normalized();
    line["value_nmse"] = error[1].normalized();
    PrintJson(line);
    if (options_.per_layer) PrintLayers(cell, s, num_tokens);
  }

  static void PrintLayers(const Cell& cell, const AccuracySummary& s, int num_tokens) {
    for (size_t layer = 0; layer < s.layer_error.size() / 2; ++layer) {
      nlohmann::ordered_json line = NameOf("layer_error", cell, num_tokens);
      line["layer"] = layer;
      line["key_nmse"] = s.layer_error[layer * 2].normalized();
      line["value_nmse"] = s.layer_error[layer * 2 + 1].normalized();
      PrintJson(line);
    }
  }

  const BenchAccuracyOptions& options_;
  Model& model_;
  std::vector<std::unique_ptr<Codec>> codecs_;
  std::vector<Cell> cells_;
};

}  // namespace

absl::Status RunBenchAccuracy(const BenchAccuracyOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const PromptSource source,
                        OpenPromptSource(options.corpus, options.config.model));
  LYNX_ASSIGN_OR_RETURN(const auto backend, MakeBackend(options.config, options.threads));
  LYNX_ASSIGN_OR_RETURN(const auto model,
                        Model::Load(options.config.model, *backend, kAccuracyChunk));
  AccuracyBench bench(options, *model);
  std::vector<std::string> codecs = options.codecs;
  if (codecs.empty()) codecs.assign(CodecNames().begin(), CodecNames().end());
  for (const std::string& name : codecs) LYNX_RETURN_IF_ERROR(bench.AddCodec(name));
  for (const int num_tokens : options.prompt_tokens) {
    LYNX_ASSIGN_OR_RETURN(const auto prompts,
                          BuildAccuracyPrompts(source, num_tokens, options.prompts));
    LYNX_ASSIGN_OR_RETURN(
        const auto accuracy,
        KvAccuracy::Create(*model, *source.tokenizer, num_tokens, NumThreads(options.threads)));
    LYNX_RETURN_IF_ERROR(bench.Measure(prompts, num_tokens, *accuracy));
  }
  return absl::OkStatus();
}

}  // namespace lynx
