// SPDX-License-Identifier: Apache-2.0
// Speed of the codecs on one core, one JSON line per case: codec, direction, planes, kind,
// head_dim, instruction set, GB/s of BF16 (median of several runs), spread, bits per element.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "lynx/backend.h"
#include "lynx/codec.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

// A page of cache-like numbers: channels of different offsets, waves and noise.
struct Page {
  explicit Page(const PageShape& s) : shape(s) {
    std::mt19937 rng(1);
    std::normal_distribution<float> noise(0, 1);
    for (int b = 0; b < kPageBlocks; ++b) {
      storage[b].resize(size_t{kBlockSize} * s.head_dim);
      tiles[b] = mutable_tiles[b] = storage[b].data();
    }
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < s.head_dim; ++c) {
        const float wave = std::sin(0.03f * static_cast<float>(t * (c % 5 + 1)));
        const float x = (c % 13 == 5 ? 8.0f : 0.0f) + 0.3f * (wave + noise(rng));
        const size_t in_tile = s.kind == KvKind::kKey
                                   ? static_cast<size_t>(c) * kBlockSize + t % kBlockSize
                                   : static_cast<size_t>(t % kBlockSize) * s.head_dim + c;
        storage[t / kBlockSize][in_tile] = ToBf16(x);
      }
    }
  }
  double gigabytes() const { return kPageTokens * shape.head_dim * sizeof(Bf16) * 1e-9; }

  PageShape shape;
  std::array<std::vector<Bf16>, kPageBlocks> storage;
  PageTiles tiles = {};
  MutablePageTiles mutable_tiles = {};
};

struct Case {
  std::string_view codec;
  const char* direction;
  int num_planes;
  const Page* page;
  const char* target;
  double bits;  // per element
};

void Report(const Case& c, const std::function<void()>& run) {
  constexpr int kRuns = 15, kPagesPerRun = 32;
  std::vector<double> rates;
  for (int r = 0; r < kRuns; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kPagesPerRun; ++i) run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    rates.push_back(kPagesPerRun * c.page->gigabytes() / seconds.count());
  }
  std::sort(rates.begin(), rates.end());
  std::printf(
      "{\"bench\": \"codec\", \"codec\": \"%.*s\", \"direction\": \"%s\", \"planes\": %d, "
      "\"kind\": \"%s\", \"head_dim\": %d, \"target\": \"%s\", \"gb_per_s\": %.2f, "
      "\"spread\": %.3f, \"bits_per_element\": %.3f}\n",
      static_cast<int>(c.codec.size()), c.codec.data(), c.direction, c.num_planes,
      c.page->shape.kind == KvKind::kKey ? "key" : "value", c.page->shape.head_dim, c.target,
      rates[kRuns / 2], (rates[kRuns - 3] - rates[2]) / rates[kRuns / 2], c.bits);
  std::fflush(stdout);
}

double BitsPerElement(const std::vector<std::vector<std::byte>>& planes, size_t num_planes,
                      const Page& page) {
  size_t bytes = 0;
  for (size_t p = 0; p < num_planes; ++p) bytes += planes[p].size();
  return 8.0 * static_cast<double>(bytes) / (kPageTokens * page.shape.head_dim);
}

// Encoding to all planes, then decoding each prefix of them.
void BenchCodec(std::string_view name, const Backend& backend, Page& page) {
  const auto codec = MakeCodec(name, backend).value();
  std::vector<std::vector<std::byte>> planes(codec->planes().size());
  codec->Encode(page.shape, page.tiles, planes);
  const double all = BitsPerElement(planes, planes.size(), page);
  auto scratch = planes;
  Report({name, "encode", static_cast<int>(planes.size()), &page, backend.target(), all}, [&] {
    for (auto& plane : scratch) plane.clear();
    codec->Encode(page.shape, page.tiles, scratch);
  });
  std::vector<std::span<const std::byte>> prefix;
  for (const auto& plane : planes) {
    prefix.emplace_back(plane);
    const Case c = {name,  "decode",         static_cast<int>(prefix.size()),
                    &page, backend.target(), BitsPerElement(planes, prefix.size(), page)};
    Report(c, [&] {
      if (!codec->Decode(page.shape, prefix, page.mutable_tiles).ok()) std::abort();
    });
  }
}

// The plane kernels without the exact plane.
void BenchCodePlanes(const Backend& backend, const Page& page) {
  const PlaneLayout layout(page.shape);
  std::array<std::vector<std::byte>, kExactPlane> planes;
  std::array<size_t, kNumPlanes> bytes = {};
  PlaneEncodeParams params{.shape = page.shape, .tiles = page.tiles, .plane_bytes = &bytes};
  size_t room = 0;
  for (int p = 0; p < kExactPlane; ++p) {
    planes[p].resize(layout.max_plane_bytes(p) + kPlaneSlack);
    params.planes[p] = planes[p].data();
  }
  backend.PlaneEncode({&params, 1});
  for (const size_t b : bytes) room += b;
  const double bits = 8.0 * static_cast<double>(room) / (kPageTokens * page.shape.head_dim);
  Report({"planes", "encode", kExactPlane, &page, backend.target(), bits}, [&] {
    backend.PlaneEncode({&params, 1});
  });
}

void Run() {
  for (const auto target : {cpu::Target::kAvx2, cpu::Target::kAvx512}) {
    const auto backend = cpu::CpuBackend::Create({.target = target});
    if (backend == nullptr) continue;
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      for (const int head_dim : {64, 128}) {
        Page page({kind, head_dim, kPageTokens, 0, 0});
        BenchCodePlanes(*backend, page);
        BenchCodec("planes", *backend, page);
      }
    }
  }
  const auto backend = cpu::CpuBackend::Create({});
  for (const std::string_view name : CodecNames()) {
    if (name == "planes") continue;
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      Page page({kind, 64, kPageTokens, 0, 0});
      BenchCodec(name, *backend, page);
    }
  }
}

}  // namespace
}  // namespace lynx

int main() { lynx::Run(); }
