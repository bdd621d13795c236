// SPDX-License-Identifier: Apache-2.0
#include "bench/codec.h"

#include <random>

#include "app/build_engine.h"
#include "bench/json_lines.h"
#include "bench/timing.h"
#include "kernels/cpu/machine_probe.h"
#include "lynx/codec.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

// Channels of different size and offset, as keys and values have them.
std::vector<Bf16> KvLikeData(KvKind kind, int head_dim, int num_pages) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> scale(head_dim), offset(head_dim);
  for (int c = 0; c < head_dim; ++c) {
    scale[c] = std::exp(normal(random));
    offset[c] = 2 * normal(random);
  }
  std::vector<Bf16> data(size_t{kPageTokens} * head_dim * num_pages);
  for (size_t i = 0; i < data.size(); ++i) {
    const size_t channel = kind == KvKind::kKey ? i / kBlockSize % head_dim : i % head_dim;
    data[i] = ToBf16(offset[channel] + scale[channel] * normal(random));
  }
  return data;
}

template <typename Pointer>
std::array<Pointer, kPageBlocks> PageAt(Pointer data, int head_dim, int page) {
  std::array<Pointer, kPageBlocks> tiles;
  for (int b = 0; b < kPageBlocks; ++b) {
    tiles[b] = data + (size_t(page) * kPageBlocks + b) * kBlockSize * head_dim;
  }
  return tiles;
}

void BenchOne(const BenchCodecOptions& options, const Codec& codec, KvKind kind, double copy) {
  const int pages = options.num_pages, head_dim = options.head_dim;
  const std::vector<Bf16> data = KvLikeData(kind, head_dim, pages);
  // Past the layers for which cachegen has finer bins.
  const PageShape shape{
      .kind = kind, .head_dim = head_dim, .num_tokens = kPageTokens, .layer = 1, .num_layers = 2};
  const size_t num_planes = codec.planes().size();
  std::vector<std::vector<std::vector<std::byte>>> planes(
      pages, std::vector<std::vector<std::byte>>(num_planes));
  const double bytes = data.size() * sizeof(Bf16);
  const auto print = [&](const char* what, size_t prefix, const Timing& timing, double bits) {
    PrintJson({{"kind", what},
               {"codec", codec.name()},
               {"tensor", kind == KvKind::kKey ? "key" : "value"},
               {"planes", prefix},
               {"head_dim", head_dim},
               {"threads", 1},
               {"gb_per_s", bytes / timing.median_s / 1e9},
               {"spread", timing.spread},
               {"bits_per_element", bits},
               {"bound_gb_per_s", copy / 1e9},
               {"of_bound", bytes / timing.median_s / copy}});
  };
  const Timing encode = Measure(options.repeats, [&] {
    for (int p = 0; p < pages; ++p) {
      for (auto& plane : planes[p]) plane.clear();
      codec.Encode(shape, PageAt(data.data(), head_dim, p), planes[p]);
    }
  });
  std::vector<double> bits(num_planes + 1, 0);
  for (size_t n = 1; n <= num_planes; ++n) {
    size_t sum = 0;
    for (const auto& page : planes) sum += page[n - 1].size();
    bits[n] = bits[n - 1] + 8.0 * sum / data.size();
  }
  print("encode", num_planes, encode, bits[num_planes]);
  std::vector<Bf16> out(data.size());
  for (size_t n = 1; n <= num_planes; ++n) {
    const Timing decode = Measure(options.repeats, [&] {
      for (int p = 0; p < pages; ++p) {
        std::vector<std::span<const std::byte>> prefix(planes[p].begin(), planes[p].begin() + n);
        LYNX_CHECK(codec.Decode(shape, prefix, PageAt(out.data(), head_dim, p)).ok());
      }
    });
    print("decode", n, decode, bits[n]);
  }
}

}  // namespace

absl::Status RunBenchCodec(const BenchCodecOptions& options) {
  if (!IsPlaneShape({.head_dim = options.head_dim, .num_tokens = kPageTokens})) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--head-dim: ", options.head_dim, " is not a multiple of 16 in 16..", kMaxHeadDim));
  }
  LYNX_ASSIGN_OR_RETURN(const auto backend, MakeBackend(options.config, 1));
  cpu::ThreadPool pool(1);
  const double read = cpu::MeasureReadBandwidth(pool, 256 << 20);
  std::vector<std::string> names = options.codecs;
  if (names.empty()) names.assign(CodecNames().begin(), CodecNames().end());
  for (const std::string& name : names) {
    LYNX_ASSIGN_OR_RETURN(const auto codec, MakeCodec(name, *backend));
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) BenchOne(options, *codec, kind, read);
  }
  return absl::OkStatus();
}

}  // namespace lynx
