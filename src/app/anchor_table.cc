// SPDX-License-Identifier: Apache-2.0
#include "app/anchor_table.h"

#include <filesystem>

#include "app/build_engine.h"
#include "spdlog/spdlog.h"

namespace lynx {

std::string KeptAnchorTable(const ClusterConfig& config, uint64_t model_hash) {
  const std::string cache = CacheDirectory(config);
  if (cache.empty()) return "";
  return absl::StrCat(cache, "/anchors/", absl::Hex(model_hash, absl::kZeroPad16), ".yaml");
}

absl::StatusOr<std::optional<AnchorWidths>> FindAnchorTable(const ClusterConfig& config,
                                                            uint64_t model_hash, int num_layers) {
  const auto& kv = config.kv;
  if (!kv.anchor_table.empty()) return ReadAnchorWidths(kv.anchor_table, num_layers);
  if (kv.anchor != "default" && kv.anchor != "auto") return std::nullopt;
  const std::string path = KeptAnchorTable(config, model_hash);
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  absl::StatusOr<AnchorWidths> kept = ReadAnchorWidths(path, num_layers);
  if (!kept.ok()) {
    spdlog::warn("anchor widths of this model are not used: {}",
                 std::string(kept.status().message()));
    return std::nullopt;
  }
  spdlog::info("anchor widths: {}", path);
  return std::move(*kept);
}

}  // namespace lynx
