// SPDX-License-Identifier: Apache-2.0
// KV that leaves and enters the emulated device, through pinned memory: the bytes are the CPU
// back-end's, in batches as one by one, and bytes of nobody's are refused.
#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/codec.h"
#include "lynx/plane_format.h"
#include "tests/simt_e2e/simt_models.h"

namespace lynx {
namespace {

constexpr int kHeadDim = 32;
constexpr size_t kTileElements = size_t{kBlockSize} * kHeadDim;
constexpr size_t kTileBytes = kTileElements * sizeof(Bf16);

// Pages of one layer in a back-end's memory; page i has its own four tiles.
class Pages {
 public:
  Pages(Backend& backend, int num_pages)
      : backend_(backend), memory_(backend.Allocate(num_pages * kPageBlocks * kTileBytes)) {}

  MutablePageTiles tiles(int page) const {
    MutablePageTiles tiles;
    for (int b = 0; b < kPageBlocks; ++b) {
      tiles[b] = reinterpret_cast<Bf16*>(memory_.get()) + (page * kPageBlocks + b) * kTileElements;
    }
    return tiles;
  }
  PageTiles const_tiles(int page) const {
    PageTiles out;
    std::ranges::copy(tiles(page), out.begin());
    return out;
  }
  void Store(const std::vector<Bf16>& elements) {
    backend_.Upload(memory_.get(), elements.data(), elements.size() * sizeof(Bf16));
  }
  std::vector<Bf16> Load() {
    std::vector<Bf16> elements(memory_.get_deleter().bytes / sizeof(Bf16));
    backend_.Download(elements.data(), memory_.get(), memory_.get_deleter().bytes);
    return elements;
  }

 private:
  Backend& backend_;
  Buffer memory_;
};

using Planes = std::vector<std::vector<std::byte>>;

class SimtTransfer : public testing::TestWithParam<const char*> {
 protected:
  SimtTransfer() : simt_(MakeSimtBackend()), cpu_(cpu::CpuBackend::Create({})) {
    EXPECT_EQ(simt_->Reserve({.max_rows = 1,
                              .max_position = kPageTokens,
                              .num_layers = 2,
                              .num_heads = 1,
                              .num_kv_heads = 1,
                              .head_dim = kHeadDim,
                              .hidden_size = 32,
                              .intermediate_size = 32,
                              .vocab_size = 32}),
              nullptr);
    simt_codec_ = *MakeCodec(GetParam(), *simt_);
    cpu_codec_ = *MakeCodec(GetParam(), *cpu_);
    // More than a batch, of all kinds and lengths.
    for (const int tokens : {1, 15, 63, 64, 65, 128, 200, 255, 256}) {
      for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        for (const int head : {0, 16}) {
          const int protect = simt_codec_->planes().size() == 1 ? 0 : std::min(head, tokens);
          shapes_.push_back({.kind = kind,
                             .head_dim = kHeadDim,
                             .num_tokens = tokens,
                             .num_protected_head = protect,
                             .layer = 1,
                             .num_layers = 2});
        }
      }
    }
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    elements_.resize(shapes_.size() * kPageBlocks * kTileElements);
    for (Bf16& e : elements_) e = ToBf16(normal(random));
  }

  std::vector<Planes> Encode(const Codec& codec, const Pages& pages) const {
    std::vector<Planes> planes(shapes_.size(), Planes(codec.planes().size()));
    std::vector<PageToEncode> batch;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      batch.push_back({.shape = shapes_[i],
                       .tiles = pages.const_tiles(static_cast<int>(i)),
                       .planes = planes[i]});
    }
    codec.EncodePages(batch);
    return planes;
  }

  absl::Status Decode(const Codec& codec, const std::vector<Planes>& planes, int num_planes,
                      const Pages& pages, size_t* bad_page) const {
    std::vector<std::vector<std::span<const std::byte>>> spans;
    for (const Planes& p : planes) spans.emplace_back(p.begin(), p.begin() + num_planes);
    std::vector<PageToDecode> batch;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      batch.push_back(
          {.shape = shapes_[i], .planes = spans[i], .tiles = pages.tiles(static_cast<int>(i))});
    }
    return codec.DecodePages(batch, bad_page);
  }

  const std::unique_ptr<Backend> simt_;
  const std::unique_ptr<cpu::CpuBackend> cpu_;
  std::unique_ptr<Codec> simt_codec_, cpu_codec_;
  std::vector<PageShape> shapes_;
  std::vector<Bf16> elements_;
};
INSTANTIATE_TEST_SUITE_P(Codecs, SimtTransfer, testing::Values("planes", "bf16", "paper"));

TEST_P(SimtTransfer, EncodesTheBytesOfTheCpu) {
  const int num_pages = static_cast<int>(shapes_.size());
  Pages device(*simt_, num_pages), host(*cpu_, num_pages);
  device.Store(elements_);
  host.Store(elements_);
  EXPECT_EQ(Encode(*simt_codec_, device), Encode(*cpu_codec_, host));
}

// Slots past a page's tokens stay as they are.
TEST_P(SimtTransfer, DecodesEveryPrefixToTheBitsOfTheCpu) {
  const int num_pages = static_cast<int>(shapes_.size());
  Pages source(*cpu_, num_pages);
  source.Store(elements_);
  const std::vector<Planes> planes = Encode(*cpu_codec_, source);
  const std::vector<Bf16> before(elements_.size(), ToBf16(7.0f));
  for (int n = 1; n <= static_cast<int>(cpu_codec_->planes().size()); ++n) {
    Pages device(*simt_, num_pages), host(*cpu_, num_pages);
    device.Store(before);
    host.Store(before);
    size_t bad_page = 0;
    ASSERT_TRUE(Decode(*simt_codec_, planes, n, device, &bad_page).ok());
    ASSERT_TRUE(Decode(*cpu_codec_, planes, n, host, &bad_page).ok());
    EXPECT_EQ(device.Load(), host.Load()) << n << " planes";
  }
}

TEST_P(SimtTransfer, RefusesOtherBytesAndNamesThePage) {
  const int num_pages = static_cast<int>(shapes_.size());
  Pages source(*cpu_, num_pages), device(*simt_, num_pages);
  source.Store(elements_);
  const std::vector<Planes> planes = Encode(*cpu_codec_, source);
  const int num_planes = static_cast<int>(simt_codec_->planes().size());
  constexpr size_t kBadPage = 21;
  constexpr size_t kMuchTooLong = size_t{1} << 20;
  for (const size_t size : {size_t{0}, size_t{5}, kMuchTooLong}) {
    std::vector<Planes> wrong = planes;
    wrong[kBadPage].back().resize(size);
    size_t bad_page = 0;
    const absl::Status status = Decode(*simt_codec_, wrong, num_planes, device, &bad_page);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_EQ(bad_page, kBadPage) << size;
  }
  size_t bad_page = 0;
  EXPECT_TRUE(Decode(*simt_codec_, planes, num_planes, device, &bad_page).ok());
}

}  // namespace
}  // namespace lynx
