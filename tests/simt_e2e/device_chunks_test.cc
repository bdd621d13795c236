// SPDX-License-Identifier: Apache-2.0
// Chunks that never leave the emulated device's memory, which the host cannot reach: the bytes are
// those of the host's path, and hand-offs over a transport that takes such memory change no token.
#include "lynx/device_chunks.h"

#include <atomic>
#include <random>

#include "codec/kv_page_codec.h"
#include "handoff/wire.h"
#include "kernels/cuda/range_allocator.h"
#include "tests/engine/loopback_fixture.h"
#include "tests/simt_e2e/simt_models.h"
#include "tests/transport/make_ucx.h"

namespace lynx {
namespace {

constexpr size_t kChunkMemory = size_t{8} << 20;

TEST(RangeAllocator, JoinsWhatComesBack) {
  constexpr size_t kUnit = cuda::RangeAllocator::kAlignment;
  cuda::RangeAllocator ranges(4 * kUnit + 100);
  std::vector<size_t> offsets;
  for (int i = 0; i < 4; ++i) offsets.push_back(*ranges.Allocate(i == 0 ? 0 : kUnit - 3));
  EXPECT_EQ(ranges.Allocate(1), std::nullopt);
  EXPECT_FALSE(ranges.Free(1));
  for (const int i : {0, 2, 1, 3}) EXPECT_TRUE(ranges.Free(offsets[i]));
  EXPECT_FALSE(ranges.Free(offsets[0]));
  EXPECT_EQ(ranges.Allocate(4 * kUnit), 0u);
}

class DeviceChunksTest : public testing::Test {
 protected:
  DeviceChunksTest() : backend_(MakeSimtBackend()) {
    EXPECT_EQ(backend_->Reserve({.max_rows = 1,
                                 .max_position = kPageTokens,
                                 .num_layers = layout_.num_layers,
                                 .num_heads = layout_.num_kv_heads,
                                 .num_kv_heads = layout_.num_kv_heads,
                                 .head_dim = layout_.head_dim,
                                 .hidden_size = 32,
                                 .intermediate_size = 32,
                                 .vocab_size = 32}),
              nullptr);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<Bf16> elements(kNumBlocks * layout_.block_bytes() / sizeof(Bf16));
    for (Bf16& e : elements) e = ToBf16(normal(random));
    source_ = backend_->Allocate(elements.size() * sizeof(Bf16));
    target_ = backend_->Allocate(elements.size() * sizeof(Bf16));
    backend_->Upload(source_.get(), elements.data(), elements.size() * sizeof(Bf16));
    codec_ = *MakeCodec("planes", *backend_);
    const SendPlan plan = DefaultSendPlan(*codec_, layout_.num_layers, true);
    pages_ = *KvPageCodec::Create(*codec_, plan, layout_);
  }

  DeviceChunks& device() { return *backend_->device_chunks(); }
  KvPage Page(int num_tokens) const {
    return {.layer = 1,
            .num_tokens = num_tokens,
            .blocks = kBlocks,
            .num_sequence_tokens = 1000,
            .num_heads = layout_.num_kv_heads};
  }
  KvPoolView pool(const Buffer& memory) const { return {memory.get(), layout_, kNumBlocks}; }
  std::vector<std::byte> Bytes(const Buffer& memory) {
    std::vector<std::byte> bytes(kNumBlocks * layout_.block_bytes());
    backend_->Download(bytes.data(), memory.get(), bytes.size());
    return bytes;
  }
  std::vector<std::byte> ToHost(const ChunkBytes& chunk) {
    std::vector<std::byte> bytes(chunk.size());
    device().Copy(bytes.data(), chunk.view().bytes.data(), bytes.size());
    return bytes;
  }
  std::vector<std::vector<std::byte>> HostStages(const KvPage& page) {
    std::vector<std::vector<std::byte>> stages(pages_->num_stages());
    pages_->EncodePage(pool(source_), page, stages);
    return stages;
  }

  static constexpr int kNumBlocks = 5;
  static constexpr BlockId kBlocks[] = {3, 0, 4, 1};
  const KvLayout layout_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 32};
  const std::unique_ptr<Backend> backend_;
  Buffer source_, target_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<KvPageCodec> pages_;
};

TEST_F(DeviceChunksTest, HoldTheBytesAndChecksumsOfTheHostsPath) {
  ASSERT_TRUE(device().Reserve(kChunkMemory));
  for (const int num_tokens : {1, 64, 130, 256, 200}) {
    const KvPage page = Page(num_tokens);
    const auto want = HostStages(page);
    std::vector<ChunkBytes> stages(want.size());
    ASSERT_TRUE(pages_->EncodePageOnDevice(pool(source_), page, stages));
    std::vector<std::span<const std::byte>> spans;
    for (const ChunkBytes& stage : stages) spans.push_back(stage.view().bytes);
    std::vector<uint64_t> checksums(stages.size());
    device().Checksums(spans, checksums.data());
    for (size_t s = 0; s < want.size(); ++s) {
      EXPECT_TRUE(stages[s].view().on_device());
      EXPECT_EQ(ToHost(stages[s]), want[s]) << num_tokens << " tokens, stage " << s;
      EXPECT_EQ(checksums[s], PayloadChecksum(want[s])) << num_tokens << " tokens, stage " << s;
    }
  }
}

// Bit s of `where`: stage s lies on the device.
TEST_F(DeviceChunksTest, AreDecodedWhereverEachStageLies) {
  ASSERT_TRUE(device().Reserve(kChunkMemory));
  const KvPage page = Page(200);
  const auto host = HostStages(page);
  std::vector<ChunkBytes> stages(host.size());
  ASSERT_TRUE(pages_->EncodePageOnDevice(pool(source_), page, stages));
  std::vector<std::byte> want;
  for (int where = 0; where < 8; ++where) {
    std::vector<MemoryView> views;
    for (size_t s = 0; s < stages.size(); ++s) {
      views.push_back((where >> s & 1) != 0 ? MemoryView(stages[s].view()) : MemoryView(host[s]));
    }
    const std::vector<std::byte> zeros(kNumBlocks * layout_.block_bytes());
    backend_->Upload(target_.get(), zeros.data(), zeros.size());
    const absl::Status status = pages_->DecodePage(page, views, pool(target_));
    ASSERT_TRUE(status.ok()) << status;
    if (where == 0) want = Bytes(target_);
    EXPECT_EQ(Bytes(target_), want) << where;
  }
}

TEST_F(DeviceChunksTest, DamagedOnesAreRefused) {
  ASSERT_TRUE(device().Reserve(kChunkMemory));
  const KvPage page = Page(130);
  std::vector<ChunkBytes> stages(pages_->num_stages());
  ASSERT_TRUE(pages_->EncodePageOnDevice(pool(source_), page, stages));
  const uint32_t too_long = 1u << 30;
  for (const size_t at : {size_t{0}, size_t{8}}) {
    std::byte* length = stages[0].view().bytes.data() + at;
    uint32_t before = 0;
    device().Copy(&before, length, sizeof(before));
    for (const uint32_t wrong : {too_long, before - 1, 0u}) {
      device().Copy(length, &wrong, sizeof(wrong));
      const MemoryView view = stages[0].view();
      EXPECT_EQ(pages_->DecodePage(page, {&view, 1}, pool(target_)).code(),
                absl::StatusCode::kDataLoss)
          << at << " " << wrong;
    }
    device().Copy(length, &before, sizeof(before));
  }
}

TEST_F(DeviceChunksTest, WithoutRoomNothingIsStoredAndNothingLeaks) {
  std::vector<ChunkBytes> stages(pages_->num_stages());
  EXPECT_FALSE(pages_->EncodePageOnDevice(pool(source_), Page(256), stages));
  const auto host = HostStages(Page(256));
  const size_t all = (host[0].size() + host[1].size() + host[2].size());
  ASSERT_TRUE(device().Reserve(all - host[2].size() / 2));  // the last stage does not fit
  for (int i = 0; i < 3; ++i) {
    stages.assign(stages.size(), {});
    EXPECT_FALSE(pages_->EncodePageOnDevice(pool(source_), Page(256), stages));
    stages.assign(stages.size(), {});
    EXPECT_TRUE(pages_->EncodePageOnDevice(pool(source_), Page(64), stages));
  }
}

// The part of one process, whatever another has taken.
TEST(SharedDevice, APartIsTheSameBeforeAndAfterTheOthers) {
  const auto first = MakeSimtBackend();
  const Buffer own = first->Allocate(size_t{1} << 20);
  const int64_t free = first->free_bytes(1);
  const int64_t part = first->free_bytes(4);
  EXPECT_LE(part, free / 3);
  const auto second = MakeSimtBackend();
  const Buffer others = second->Allocate(size_t{3} << 20);
  EXPECT_EQ(first->free_bytes(4), part);
  EXPECT_LT(first->free_bytes(1), free);
  EXPECT_EQ(part - second->free_bytes(4), int64_t{2} << 20);
}

std::vector<Request> Requests(int vocab_size) {
  std::vector<Request> requests;
  std::mt19937 rng(31);
  for (const int length : {70, 150}) {
    std::vector<TokenId> prompt(length);
    for (TokenId& t : prompt) t = static_cast<TokenId>(rng() % vocab_size);
    requests.push_back(MakeRequest(absl::StrCat("r", length), prompt, 8, 0, 50));
  }
  return requests;
}

// What the transports move by the device.
class CountingChunks final : public DeviceChunks {
 public:
  explicit CountingChunks(DeviceChunks& inner) : inner_(inner) {}
  int num_copies() const { return num_copies_; }

  bool Reserve(size_t bytes) override { return inner_.Reserve(bytes); }
  std::byte* Allocate(size_t bytes) override { return inner_.Allocate(bytes); }
  void Free(std::byte* chunk) override { inner_.Free(chunk); }
  void UseDevice() const override { inner_.UseDevice(); }
  void Copy(void* to, const void* from, size_t bytes) const override {
    ++num_copies_;
    inner_.Copy(to, from, bytes);
  }
  void Checksums(std::span<const std::span<const std::byte>> chunks,
                 uint64_t* checksums) const override {
    inner_.Checksums(chunks, checksums);
  }
  bool EncodePlanes(std::span<PlaneEncodeParams> pages, std::span<const Table> tables,
                    const std::function<bool()>& place) const override {
    return inner_.EncodePlanes(pages, tables, place);
  }

 private:
  DeviceChunks& inner_;
  mutable std::atomic<int> num_copies_ = 0;
};

class DeviceHandoff : public testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options = SmallOptions();
    options.num_kv_blocks = 16;
    options.max_draft_tokens = 6;
    options.max_num_batched_tokens = 96;
    return options;
  }
  void SetUp() override {
    model_ = LoadedModel::Load(TinyModels()[0].path, MakeSimtBackend(), 96);
    requests_ = Requests(model_.model->config().vocab_size);
    for (const Request& r : requests_) {
      want_.push_back(Colocated(Options(), model_.model.get()).Run(r).tokens);
    }
  }
  LoopbackPair::Settings Settings() {
    LoopbackPair::Settings settings;
    settings.options = Options();
    settings.device = model_.backend->device_chunks();
    return settings;
  }
  void RunAndCompare(LoopbackPair& pair) {
    for (const Request& r : requests_) pair.Submit(r);
    pair.RunAll();
    for (size_t i = 0; i < requests_.size(); ++i) {
      EXPECT_EQ(pair.clients[requests_[i].id].tokens, want_[i]) << i;
    }
    EXPECT_GT(pair.decode->stats().remote_prefills, 0);
    pair.ExpectNoLeak();
  }

  LoadedModel model_;
  std::vector<Request> requests_;
  std::vector<std::vector<TokenId>> want_;
};

TEST_F(DeviceHandoff, ChangesNoToken) {
  CountingChunks device(*model_.backend->device_chunks());
  ASSERT_TRUE(device.Reserve(kChunkMemory));
  LoopbackPair::Settings settings = Settings();
  settings.device = &device;
  LoopbackPair pair(settings, model_, model_);
  RunAndCompare(pair);
  // All chunks of both prompts: three stages of one page in each layer.
  EXPECT_EQ(device.num_copies(), 2 * 3 * model_.model->config().num_layers);
}

// Room for a few chunks: the others pass through host memory.
TEST_F(DeviceHandoff, NeitherDoesAMixture) {
  ASSERT_TRUE(model_.backend->device_chunks()->Reserve(size_t{100} << 10));
  LoopbackPair pair(Settings(), model_, model_);
  RunAndCompare(pair);
}

// UCX is given the chunks' own memory, which it reaches as a network card reaches a GPU's.
TEST_F(DeviceHandoff, UcxMovesThemFromAndToDeviceMemory) {
  CountingChunks device(*model_.backend->device_chunks());
  ASSERT_TRUE(device.Reserve(kChunkMemory));
  std::byte* const chunk = device.Allocate(1);
  simt::ShareWithHost(chunk);
  device.Free(chunk);
  LoopbackPair::Settings settings = Settings();
  settings.device = &device;
  settings.make_transport = [&device] {
    auto transport = MakeUcx({.use_device = [&device] { device.UseDevice(); }});
    EXPECT_TRUE(transport->takes_device_memory());
    return transport;
  };
  LoopbackPair pair(settings, model_, model_);
  RunAndCompare(pair);
  EXPECT_EQ(device.num_copies(), 0) << "nothing was staged";
  EXPECT_EQ(pair.decode->stats().received_chunks, 2 * 3 * model_.model->config().num_layers);
}

TEST_F(DeviceHandoff, DamageIsFoundByTheDevicesChecksum) {
  ASSERT_TRUE(model_.backend->device_chunks()->Reserve(kChunkMemory));
  LoopbackPair pair(Settings(), model_, model_);
  pair.link().CorruptPulls([once = std::make_shared<bool>(true)](std::span<const std::byte>) {
    return std::exchange(*once, false);
  });
  RunAndCompare(pair);
  EXPECT_GE(pair.decode->stats().checksum_errors, 1);
}

}  // namespace
}  // namespace lynx
