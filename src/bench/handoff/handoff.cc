// SPDX-License-Identifier: Apache-2.0
// `lynx bench handoff`:
//   1. one colocated engine answers every prompt with the BF16 cache: the reference
//   2. a gateway, a prefill and a decode daemon start for each (codec, anchor); all live until the
//      end, and those not asked are idle
//   3. for each link, prompt length and load, the variants take turns, one request at a time;
//      every round has a prompt of its own
//   4. as soon as a length is done, one JSON object for each variant
#include "bench/handoff/handoff.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "absl/strings/str_format.h"
#include "app/check_model.h"
#include "app/run_directory.h"
#include "app/stop_signals.h"
#include "bench/handoff/grid.h"
#include "bench/handoff/load.h"
#include "bench/handoff/placement.h"
#include "bench/handoff/questions.h"
#include "bench/handoff/report.h"
#include "bench/handoff/sample.h"
#include "bench/handoff/servers.h"
#include "bench/json_lines.h"
#include "bench/lab/network_lab.h"
#include "codec/anchor_widths.h"
#include "formats/model_files.h"
#include "kernels/cpu/available_cores.h"

namespace lynx {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWarmUpTokens = 512;   // of a prompt that makes daemons connect and measure the link
constexpr int kModelLenMargin = 64;  // room behind prompt and answer

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Daemons read it from a file in another directory.
void MakeAbsolute(std::string* path) {
  if (!path->empty()) *path = std::filesystem::absolute(*path).string();
}

// EngineStats that are nanoseconds of a hand-off, by their names in a cell.
constexpr std::pair<const char*, const char*> kCounted[] = {
    {"encode", "encode_ns"}, {"queue", "pull_wait_ns"}, {"wire", "pull_ns"},
    {"decode", "decode_ns"}, {"refine", "refine_ns"},   {"encode_exposed", "encode_exposed_ns"}};

class HandoffBench {
 public:
  HandoffBench(const BenchHandoffOptions& options, HandoffGrid grid)
      : options_(options), grid_(std::move(grid)) {}

  absl::Status Run() {
    StopSignals signals;
    signals.OnStop([this](int) { Stop(); });
    absl::Status status = Prepare();
    if (status.ok()) status = MeasureAll();
    signals.End();
    clusters_.clear();
    lab_.reset();
    return stopped_ ? absl::CancelledError("stopped by a signal; what ran is removed") : status;
  }

 private:
  using ClusterKey = std::pair<std::string, std::string>;  // codec, anchor

  // What can be wrong is found here, the quickest first.
  absl::Status Prepare() {
    LYNX_ASSIGN_OR_RETURN(
        placement_, PlaceDaemons(cpu::AvailableCores(), options_.own_cores ? options_.threads : 0));
    LYNX_RETURN_IF_ERROR(CheckAnchorTable());
    LYNX_ASSIGN_OR_RETURN(json_, JsonLines::Open(options_.json));
    LYNX_ASSIGN_OR_RETURN(directory_, RunDirectory::Create());
    if (grid_.shaped()) {
      LYNX_ASSIGN_OR_RETURN(lab_, NetworkLab::Create({}));
    }
    LYNX_RETURN_IF_ERROR(CheckModel(options_.config.model));
    LYNX_ASSIGN_OR_RETURN(questions_, MakeHandoffQuestions(options_, grid_.prompt_tokens));
    return absl::OkStatus();
  }

  absl::Status CheckAnchorTable() const {
    const std::string& table = options_.config.kv.anchor_table;
    if (table.empty()) return absl::OkStatus();
    LYNX_ASSIGN_OR_RETURN(const auto files, ModelFiles::Open(options_.config.model));
    const auto widths = ReadAnchorWidths(table, files->config().num_layers);
    if (widths.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--anchor-table: ", widths.status().message()));
  }

  absl::Status MeasureAll() {
    LYNX_RETURN_IF_ERROR(AnswerColocated());
    begin_ = Clock::now();
    for (const HandoffGrid::Link& link : grid_.links) LYNX_RETURN_IF_ERROR(MeasureLink(link));
    return absl::OkStatus();
  }

  ClusterConfig ConfigOf(const ClusterKey& key) const {
    ClusterConfig config = options_.config;
    MakeAbsolute(&config.model);
    config.kv.codec = key.first;
    config.kv.anchor = key.second;
    MakeAbsolute(&config.kv.anchor_table);
    config.log_level = "warn";
    config.max_model_len =
        questions_.of_length.rbegin()->first + options_.max_tokens + kModelLenMargin;
    for (RoleConfig* role : {&config.context, &config.generation}) {
      role->threads = options_.threads;
      role->enable_block_reuse = false;  // every request pays for its whole prompt
    }
    config.context.enable_block_reuse = options_.prefill_cached;
    return config;
  }

  absl::Status AnswerColocated() {
    ClusterConfig config = ConfigOf({"bf16", "default"});
    config.colocated = true;
    config.generation.threads = 0;  // the text is the same, and here nobody measures
    LYNX_RETURN_IF_ERROR(StartCluster({"bf16", "colocated"}, std::move(config), false));
    HandoffServers& cluster = *clusters_.at({"bf16", "colocated"});
    LYNX_RETURN_IF_ERROR(cluster.WaitReady());
    double seconds = 0;
    for (auto& [num_tokens, questions] : questions_.of_length) {
      const auto begin = Clock::now();
      for (HandoffQuestion& question : questions) {
        LYNX_ASSIGN_OR_RETURN(question.reference, MeasureHandoff(cluster.port(), question.prompt,
                                                                 options_.max_tokens, "residual"));
      }
      const double each = SecondsSince(begin) / questions.size();
      std::fprintf(stderr, "reference: %d tokens, %.1f s each\n", num_tokens, each);
      seconds += each * options_.repeat * grid_.links.size() * grid_.variants.size() *
                 (grid_.busy.size() + (options_.busy == "idle" ? 0 : 0.5));
    }
    std::fprintf(stderr, "%d cells; about %.0f minutes, and what their transfers take\n",
                 grid_.num_cells(), std::ceil(seconds / 60));
    std::lock_guard lock(mutex_);
    clusters_.clear();
    return absl::OkStatus();
  }

  // With daemons of its own: connections and estimates remember the link that they were made on.
  absl::Status MeasureLink(const HandoffGrid::Link& link) {
    LYNX_RETURN_IF_ERROR(StartClusters(link.shaped));
    LinkMeasurement measured;
    if (link.shaped) {
      LYNX_RETURN_IF_ERROR(lab_->SetLink(link.spec));
      LYNX_ASSIGN_OR_RETURN(measured, lab_->Measure());
      std::fprintf(stderr, "link %s: %.1f Mbit/s of payload, round trip %.3f ms\n",
                   link.name.c_str(), measured.bits_per_second / 1e6, measured.rtt_s * 1e3);
    }
    LYNX_RETURN_IF_ERROR(WarmUp());
    for (const int num_tokens : grid_.prompt_tokens) {
      for (const bool busy : grid_.busy) {
        LYNX_RETURN_IF_ERROR(MeasureVariants(link, measured, num_tokens, busy));
      }
    }
    std::lock_guard lock(mutex_);
    clusters_.clear();
    return absl::OkStatus();
  }

  absl::Status StartClusters(bool in_lab) {
    for (const HandoffVariant& variant : grid_.variants) {
      const ClusterKey key(variant.codec, variant.anchor);
      if (clusters_.contains(key)) continue;
      LYNX_RETURN_IF_ERROR(StartCluster(key, ConfigOf(key), in_lab));
    }
    for (const auto& [key, cluster] : clusters_) LYNX_RETURN_IF_ERROR(cluster->WaitReady());
    return absl::OkStatus();
  }

  absl::Status StartCluster(const ClusterKey& key, ClusterConfig config, bool in_lab) {
    std::lock_guard lock(mutex_);
    if (stopped_) return absl::CancelledError("stopped");
    HandoffPlacement placement;
    if (!config.colocated) placement = placement_;
    LYNX_ASSIGN_OR_RETURN(
        clusters_[key],
        HandoffServers::Start({.config = std::move(config),
                               .directory = directory_->path(),
                               .name = absl::StrCat(key.first, "-", clusters_.size()),
                               .in_lab = in_lab,
                               .port_offset = static_cast<int>(clusters_.size()),
                               .placement = std::move(placement)}));
    return absl::OkStatus();
  }

  HandoffServers& ClusterOf(const HandoffVariant& variant) {
    return *clusters_.at({variant.codec, variant.anchor});
  }

  // So that no variant's first request pays for connections, or knows nothing of the link's rate.
  absl::Status WarmUp() {
    HandoffPrompt prompt;
    prompt.tokens.assign(questions_.load_tokens.begin(),
                         questions_.load_tokens.begin() + kWarmUpTokens);
    for (const HandoffVariant& variant : grid_.variants) {
      LYNX_RETURN_IF_ERROR(
          MeasureHandoff(ClusterOf(variant).port(), prompt, options_.max_tokens, variant.verify)
              .status());
    }
    return absl::OkStatus();
  }

  absl::Status MeasureVariants(const HandoffGrid::Link& link, const LinkMeasurement& measured,
                               int num_tokens, bool busy) {
    std::vector<HandoffCell> cells;
    for (const HandoffVariant& variant : grid_.variants) {
      cells.push_back({.variant = variant,
                       .link = link,
                       .measured = measured,
                       .prompt_tokens = num_tokens,
                       .busy = busy,
                       .prefill_cached = options_.prefill_cached,
                       .threads = options_.threads,
                       .own_cores = options_.own_cores,
                       .runs = {}});
    }
    for (const HandoffQuestion& question : questions_.of_length.at(num_tokens)) {
      for (HandoffCell& cell : cells) {
        LYNX_ASSIGN_OR_RETURN(HandoffCell::Run run, MeasureOnce(cell, question));
        cell.runs.push_back(std::move(run));
      }
    }
    for (const HandoffCell& cell : cells) {
      LYNX_RETURN_IF_ERROR(json_.Print(CellJson(cell)));
      ++num_done_;
    }
    const double minutes = SecondsSince(begin_) / 60;
    std::fprintf(stderr, "%d of %d cells after %.1f minutes; %s, %d tokens, prefill %s\n",
                 num_done_, grid_.num_cells(), minutes, link.name.c_str(), num_tokens,
                 busy ? "busy" : "idle");
    return absl::OkStatus();
  }

  absl::StatusOr<HandoffCell::Run> MeasureOnce(const HandoffCell& cell,
                                               const HandoffQuestion& question) {
    HandoffServers& cluster = ClusterOf(cell.variant);
    if (cell.prefill_cached) {
      LYNX_RETURN_IF_ERROR(
          MeasureHandoff(cluster.port(), question.prompt, /*max_tokens=*/2, "residual").status());
    }
    LYNX_ASSIGN_OR_RETURN(const auto before, cluster.Counters());
    std::optional<HandoffLoad> load;
    if (cell.busy) load.emplace(cluster.port(), questions_.load_tokens);
    HandoffCell::Run run{.sample = {},
                         .reference = &question.reference,
                         .needle = question.prompt.needle,
                         .counted_s = {}};
    LYNX_ASSIGN_OR_RETURN(run.sample, MeasureHandoff(cluster.port(), question.prompt,
                                                     options_.max_tokens, cell.variant.verify));
    LYNX_ASSIGN_OR_RETURN(const auto after, cluster.Counters());
    for (const auto& [name, counter] : kCounted) {
      run.counted_s[name] = static_cast<double>(after.at(counter) - before.at(counter)) / 1e9;
    }
    if (run.sample.handoffs == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-tokens: ", cell.prompt_tokens, " tokens are not handed over"));
    }
    return run;
  }

  // On the thread of the signals: what runs fails at once, and Run cleans up.
  void Stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& [key, cluster] : clusters_) cluster->Kill();
  }

  const BenchHandoffOptions& options_;
  const HandoffGrid grid_;
  HandoffPlacement placement_;
  HandoffQuestions questions_;
  JsonLines json_;
  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<NetworkLab> lab_;
  std::mutex mutex_;  // guards what follows against Stop
  std::map<ClusterKey, std::unique_ptr<HandoffServers>> clusters_;
  std::atomic<bool> stopped_ = false;
  Clock::time_point begin_;
  int num_done_ = 0;
};

void List(const HandoffGrid& grid, int repeat) {
  for (const HandoffGrid::Link& link : grid.links) {
    for (const int num_tokens : grid.prompt_tokens) {
      for (const bool busy : grid.busy) {
        for (const HandoffVariant& v : grid.variants) {
          std::printf("%s rtt %.1f us, %d tokens, prefill %s, %s, anchor %s, verify %s\n",
                      link.name.c_str(), link.spec.rtt_s * 1e6, num_tokens, busy ? "busy" : "idle",
                      v.codec.c_str(), v.anchor.c_str(), v.verify.c_str());
        }
      }
    }
  }
  std::printf("%d cells, %d requests\n", grid.num_cells(), grid.num_cells() * repeat);
}

}  // namespace

absl::Status RunBenchHandoff(const BenchHandoffOptions& options) {
  LYNX_ASSIGN_OR_RETURN(HandoffGrid grid, MakeHandoffGrid(options));
  if (options.list) {
    List(grid, options.repeat);
    return absl::OkStatus();
  }
  return HandoffBench(options, std::move(grid)).Run();
}

}  // namespace lynx
