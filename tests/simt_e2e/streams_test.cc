// SPDX-License-Identifier: Apache-2.0
// When what runs on the device, and when it takes memory: read from the record of the emulated
// streams (simt/streams.h), where nothing runs before somebody waits for it.
#include "simt/streams.h"

#include <condition_variable>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "app/build_engine.h"
#include "core/cluster_config.h"
#include "handoff/kv_sender.h"
#include "kernels/cuda/plane_decode.h"
#include "kv/kv_cache.h"
#include "lynx/device_chunks.h"
#include "tests/engine/loopback_fixture.h"
#include "tests/formats/file_builders.h"
#include "tests/simt_e2e/simt_models.h"

namespace lynx {
namespace {

using simt::OperationKind;
using simt::StreamOperation;
using simt::StreamOrder;
using Trace = std::vector<StreamOperation>;

constexpr int kNumLayers = 5;
constexpr int kNumTokens = 100;
constexpr int kMaxRows = 128;

// A random Llama with more layers than the other tiny models.
std::string DeepModel() {
  static const TempDirectory directory;
  std::map<std::string, std::vector<int64_t>> tensors = {{"model.embed_tokens.weight", {64, 32}},
                                                         {"model.norm.weight", {32}}};
  for (int l = 0; l < kNumLayers; ++l) {
    const std::string layer = absl::StrCat("model.layers.", l, ".");
    tensors[layer + "input_layernorm.weight"] = {32};
    tensors[layer + "post_attention_layernorm.weight"] = {32};
    for (const char* name : {"self_attn.q_proj", "self_attn.o_proj"}) {
      tensors[absl::StrCat(layer, name, ".weight")] = {32, 32};
    }
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) {
      tensors[absl::StrCat(layer, name, ".weight")] = {16, 32};
    }
    for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) {
      tensors[absl::StrCat(layer, name, ".weight")] = {64, 32};
    }
    tensors[layer + "mlp.down_proj.weight"] = {32, 64};
  }
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-0.3f, 0.3f);
  directory.Write("model.safetensors", Safetensors(tensors, [&] { return uniform(random); }));
  directory.Write("config.json", absl::StrCat(R"({"architectures": ["LlamaForCausalLM"],
      "vocab_size": 64, "num_hidden_layers": )",
                                              kNumLayers, R"(, "hidden_size": 32,
      "intermediate_size": 64, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
      "max_position_embeddings": 512, "tie_word_embeddings": true})"));
  return directory.path();
}

// Counts the anchors that a sender has posted, and takes none: all of them are under way at once.
class AnchorCounter final : public TransportHandler {
 public:
  explicit AnchorCounter(Transport& transport) : transport_(transport) { transport.Start(this); }
  ~AnchorCounter() override { transport_.Stop(); }

  bool WaitFor(int num_anchors) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return num_anchors_ >= num_anchors; });
  }

  void OnControl(uint64_t, std::span<const std::byte>) override {}
  void OnPeerLost(PeerId, uint64_t, const absl::Status&) override {}
  void OnOffer(OfferId, uint64_t, std::span<const std::byte> header, size_t) override {
    std::lock_guard lock(mutex_);
    if (!IsLaterStage(header)) ++num_anchors_;
    changed_.notify_all();
  }

 private:
  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_anchors_ = 0;
};

struct Step {
  explicit Step(int num_rows) : tokens(num_rows), positions(num_rows), blocks(2) {
    for (int i = 0; i < num_rows; ++i) tokens[i] = i * 7 % 64;
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(blocks.begin(), blocks.end(), 0);
    group = {.num_rows = num_rows, .block_table = blocks.data()};
  }
  ForwardBatch batch() const {
    return {.tokens = tokens, .positions = positions, .groups = {&group, 1}};
  }
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<BlockId> blocks;
  RowGroup group;
};

int ComputeStream(Backend& backend) {
  return simt::StreamId(static_cast<cuda::CudaBackend&>(backend).compute_stream());
}

// While the last layer is queued, the anchors of all layers before it are encoded and offered to
// the other side, and no kernel has run that stands behind the KV of the layer that was encoded.
TEST(SimtTimeline, AnchorsLeaveTheDeviceWhileLaterLayersWait) {
  LoadedModel m = LoadedModel::Load(DeepModel(), MakeSimtBackend(), kMaxRows);
  const auto cache = *KvCache::Create(*m.backend, m.model->kv_layout(), 2);
  const auto codec = *MakeCodec("planes", *m.backend);
  const auto hub = MakeLoopbackHub();
  const auto sending = MakeLoopbackTransport(hub), receiving = MakeLoopbackTransport(hub);
  AnchorCounter anchors(*receiving);
  const auto sender = KvSender::Create({}, *codec, DefaultSendPlan(*codec, kNumLayers, true),
                                       cache->view(), *sending, [] {});
  const Step step(kNumTokens);
  const AttemptId attempt{1, 2};
  ASSERT_TRUE(sender
                  ->Begin({.attempt = attempt,
                           .receiver_address = receiving->address(),
                           .num_tokens = kNumTokens,
                           .block_table = step.blocks})
                  .ok());
  Trace trace;
  simt::StartTrace();
  m.model->Forward(step.batch(), cache->view(), nullptr, [&](int layer) {
    if (layer < kNumLayers - 1) return;
    for (int l = 0; l < layer; ++l) sender->Computed(attempt, l, kNumTokens);
    EXPECT_TRUE(anchors.WaitFor(kNumLayers - 1));
    trace = simt::StopTrace();
  });

  std::vector<const StreamOperation*> gathers, records, kernels;
  for (const StreamOperation& o : trace) {
    const bool compute = o.stream == ComputeStream(*m.backend);
    if (o.name == "PlaneGatherKernel") gathers.push_back(&o);
    if (compute && o.kind == OperationKind::kRecord) records.push_back(&o);
    if (compute && o.kind == OperationKind::kKernel) kernels.push_back(&o);
  }
  ASSERT_EQ(gathers.size(), kNumLayers - 1u);
  ASSERT_EQ(records.size(), kNumLayers * 1u);  // "KV written"
  for (int l = 0; l < kNumLayers - 1; ++l) {
    int num_waiting = 0;
    for (const StreamOperation* kernel : kernels) {
      const bool later = kernel->queued > records[l]->queued;
      EXPECT_EQ(kernel->WaitedWhile(*gathers[l]), later) << "layer " << l << " " << kernel->name;
      num_waiting += later;
    }
    EXPECT_GE(num_waiting, 10 * (kNumLayers - 1 - l)) << l;
  }
}

std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (const int length : {70, 150}) {
    std::vector<TokenId> prompt(length);
    for (int i = 0; i < length; ++i) prompt[i] = (i * 11 + length) % 64;
    requests.push_back(MakeRequest(absl::StrCat("r", length), prompt, 8, 0, 50));
  }
  return requests;
}

LoopbackPair::Settings SmallPair() {
  LoopbackPair::Settings settings;
  settings.options.num_kv_blocks = 16;
  settings.options.max_draft_tokens = 6;
  settings.options.max_num_batched_tokens = 96;
  return settings;
}

// Bytes that went up for the plane decoder, by the stream that its own one waits for.
size_t UploadedBytes(const Trace& trace) {
  std::set<int> decoders, uploads;
  for (const auto& o : trace) {
    if (o.name == "PlaneDecodeKernel") decoders.insert(o.stream);
  }
  for (const auto& o : trace) {
    if (o.kind == OperationKind::kWait && decoders.contains(o.stream)) uploads.insert(o.waits_for);
  }
  size_t bytes = 0;
  for (const auto& o : trace) {
    const bool up = o.kind == OperationKind::kCopy && o.direction == cudaMemcpyHostToDevice;
    if (up && uploads.contains(o.stream) && o.ran != StreamOperation::kNever) bytes += o.bytes;
  }
  return bytes;
}

// What goes up before drafts run is the anchors and what describes their pages; the rest comes
// later.
TEST(SimtTimeline, TheDecodeSideUploadsAnchorsBeforeResiduals) {
  LoadedModel prefill = LoadedModel::Load(DeepModel(), MakeSimtBackend(), 96);
  LoadedModel decode = LoadedModel::Load(DeepModel(), MakeSimtBackend(), 96);
  LoopbackPair pair(SmallPair(), prefill, decode);
  pair.link().HoldOffers(IsLaterStage);
  simt::StartTrace();
  pair.Submit(Requests()[1]);
  pair.RunUntil([&] { return pair.decode->stats().draft_tokens >= 4; });
  const Trace early = simt::StopTrace();
  const EngineStats stats = pair.decode->stats();
  EXPECT_EQ(stats.received_bytes[1] + stats.received_bytes[2], 0);
  EXPECT_GE(UploadedBytes(early), static_cast<size_t>(stats.received_bytes[0]) * 9 / 10);
  // Keys and values of one KV head.
  const size_t descriptions = 2 * kNumLayers * (sizeof(cuda::PlaneDecodePage) + kNumPlanes * 16);
  EXPECT_LE(UploadedBytes(early), static_cast<size_t>(stats.received_bytes[0]) + descriptions);
  const auto is_draft = [&](const StreamOperation& o) {
    return o.stream == ComputeStream(*decode.backend) && o.name == "AttentionNarrowKernel" &&
           o.ran != StreamOperation::kNever;
  };
  EXPECT_TRUE(std::ranges::any_of(early, is_draft));

  simt::StartTrace();
  pair.link().ReleaseOffers();
  pair.RunAll();
  const Trace late = simt::StopTrace();
  const int64_t later_bytes =
      pair.decode->stats().received_bytes[1] + pair.decode->stats().received_bytes[2];
  EXPECT_GE(UploadedBytes(late), static_cast<size_t>(later_bytes) * 9 / 10);
  pair.ExpectNoLeak();
}

// The uploads of a batch neither wait for the kernels that decode the pages before them, nor do
// these wait for them.
TEST(SimtTimeline, PagesAreUploadedWhileEarlierOnesAreDecoded) {
  constexpr int kNumPages = 20;  // of one tile each; 8 to an upload
  const auto backend = MakeSimtBackend();
  ASSERT_EQ(backend->Reserve({.max_rows = 1,
                              .max_position = kPageTokens,
                              .num_layers = 1,
                              .num_heads = 1,
                              .num_kv_heads = 1,
                              .head_dim = 16,
                              .hidden_size = 32,
                              .intermediate_size = 32,
                              .vocab_size = 32}),
            nullptr);
  const size_t tile_bytes = kBlockSize * 16 * sizeof(Bf16);
  const Buffer pool = backend->Allocate(kNumPages * tile_bytes);
  const auto codec = *MakeCodec("planes", *backend);
  const PageShape shape{.head_dim = 16, .num_tokens = kBlockSize, .num_layers = 1};
  std::vector<std::vector<std::vector<std::byte>>> planes(kNumPages);
  std::vector<PageToEncode> encode;
  std::vector<std::vector<std::span<const std::byte>>> spans(kNumPages);
  std::vector<PageToDecode> decode;
  for (int i = 0; i < kNumPages; ++i) {
    auto* tile = reinterpret_cast<Bf16*>(pool.get() + i * tile_bytes);
    planes[i].resize(codec->planes().size());
    encode.push_back({.shape = shape, .tiles = {tile}, .planes = planes[i]});
  }
  codec->EncodePages(encode);
  for (int i = 0; i < kNumPages; ++i) {
    auto* tile = reinterpret_cast<Bf16*>(pool.get() + i * tile_bytes);
    spans[i].assign(planes[i].begin(), planes[i].end());
    decode.push_back({.shape = shape, .planes = spans[i], .tiles = {tile}});
  }
  for (const StreamOrder order : {StreamOrder::kNeeded, StreamOrder::kOthersFirst}) {
    simt::SetStreamOrder(order);
    simt::StartTrace();
    size_t bad_page = 0;
    EXPECT_TRUE(codec->DecodePages(decode, &bad_page).ok());
    const Trace trace = simt::StopTrace();
    simt::SetStreamOrder(StreamOrder::kNeeded);
    std::vector<StreamOperation> uploads, kernels;
    for (const auto& o : trace) {
      if (o.name == "PlaneDecodeKernel") kernels.push_back(o);
      if (o.direction == cudaMemcpyHostToDevice) uploads.push_back(o);
    }
    ASSERT_EQ(kernels.size(), 3u);
    ASSERT_EQ(uploads.size(), 4u);  // the first describes the pages
    for (size_t i = 0; i + 1 < kernels.size(); ++i) {
      EXPECT_EQ(uploads[i + 2].WaitedWhile(kernels[i]), order == StreamOrder::kNeeded);
      EXPECT_EQ(kernels[i].WaitedWhile(uploads[i + 2]), order == StreamOrder::kOthersFirst);
    }
  }
}

TEST(SimtTimeline, EveryOrderOfTheStreamsGivesTheSameTokens) {
  std::vector<std::vector<TokenId>> want;
  for (const StreamOrder order :
       {StreamOrder::kNeeded, StreamOrder::kOthersFirst, StreamOrder::kAtOnce}) {
    simt::SetStreamOrder(order);
    {
      LoadedModel m = LoadedModel::Load(DeepModel(), MakeSimtBackend(), 96);
      LoopbackPair pair(SmallPair(), m, m);
      for (const Request& r : Requests()) pair.Submit(r);
      pair.RunAll();
      std::vector<std::vector<TokenId>> got;
      for (const Request& r : Requests()) got.push_back(pair.clients[r.id].tokens);
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << static_cast<int>(order);
      pair.ExpectNoLeak();
    }
    simt::SetStreamOrder(StreamOrder::kNeeded);
  }
}

// ---- memory -------------------------------------------------------------------------------------
TEST(SimtMemory, IsTakenAtStartUpOnly) {
  LoadedModel m = LoadedModel::Load(DeepModel(), MakeSimtBackend(), 96);
  ASSERT_TRUE(m.backend->device_chunks()->Reserve(size_t{4} << 20));
  for (DeviceChunks* device : {static_cast<DeviceChunks*>(nullptr), m.backend->device_chunks()}) {
    LoopbackPair::Settings settings = SmallPair();
    settings.device = device;
    LoopbackPair pair(settings, m, m);
    const int before = simt::NumAllocations();
    for (const Request& r : Requests()) pair.Submit(r);
    pair.RunAll();
    pair.ExpectNoLeak();
    EXPECT_EQ(simt::NumAllocations(), before);
    EXPECT_GT(pair.decode->stats().prompt_tokens_transferred, 0);
  }
}

TEST(SimtMemory, ThePoolTakesItsFractionOfWhatIsFree) {
  Backends backends;
  backends.push_back(MakeSimtBackend());
  const auto model = *Model::Load(DeepModel(), *backends[0], kMaxRows);
  for (const char* fraction : {"0.25", "0.9"}) {
    const auto config =
        ParseClusterConfig(absl::StrCat("kv: {memory_fraction: ", fraction, "}\n"), "c.yaml");
    ASSERT_TRUE(config.ok()) << config.status();
    size_t free = 0, total = 0, left = 0;
    cudaMemGetInfo(&free, &total);
    const KvLayout layout = model->kv_layout();
    const int64_t bytes = DefaultKvMemory(backends, config->generation, layout, 512);
    EXPECT_EQ(bytes, static_cast<int64_t>(free * std::stod(fraction)));
    const int num_blocks = *NumKvBlocks(bytes, layout);
    const auto pool = *KvCache::Create(*backends[0], layout, num_blocks);
    cudaMemGetInfo(&left, &total);
    EXPECT_EQ(free - left, num_blocks * layout.block_bytes());
    EXPECT_LT(bytes - static_cast<int64_t>(free - left), int64_t(layout.block_bytes()));
  }
}

}  // namespace
}  // namespace lynx
