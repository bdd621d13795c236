// SPDX-License-Identifier: Apache-2.0
// cuda_kernel_bench [--small]: every kernel of kernels/cuda at the shapes of SmolLM2-135M and of
// Llama-3.1-8B, one JSON object a line: the median time of a launch with cold caches, the bytes it
// must move and the operations it must do in a second, and the former against the rate of a copy in
// the same run (bytes read and written). --small: one launch each at a tiny shape, to see that it
// is valid; the emulated device of tests/simt takes no other.
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/cuda_bench.h"
#include "bench/cuda_kv.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cuda/accept.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/chunk_checksum.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/gather_rows.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kv_write.h"
#include "kernels/cuda/quantized_gemm.h"
#include "kernels/cuda/rank_sum.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/silu_mul.h"
#include "kernels/cuda/weight.h"

namespace lynx::cuda {
namespace {

struct Model {
  const char* name;
  int hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
};
constexpr Model kSmolLm2 = {"SmolLM2-135M", 576, 1536, 9, 3, 64, 49152};
constexpr Model kLlama = {"Llama-3.1-8B", 4096, 14336, 32, 8, 128, 128256};
constexpr Model kTiny = {"tiny", 128, 256, 4, 2, 64, 600};

struct Scale {
  std::vector<int> decode_rows;
  int prefill_rows;
  int context;  // a multiple of a page
  int num_sequences;
};
const Scale kFull = {{1, 4, 16}, 512, 4096, 16};
const Scale kSmall = {{1, 3}, 70, kPageTokens, 2};

std::string Shape(const Model& model, const std::string& what) { return model.name + (" " + what); }
std::string Rows(int rows) { return ", rows " + std::to_string(rows); }
std::string Matrix(int64_t n, int64_t k) { return std::to_string(n) + " x " + std::to_string(k); }

std::vector<int32_t> Ascending(int n, int limit) {
  std::vector<int32_t> values(n);
  for (int i = 0; i < n; ++i) values[i] = i * 7 % limit;
  return values;
}

// ---- what stands between the products -----------------------------------------------------------

void Norms(Bench& bench, const Model& m, int rows) {
  const size_t n = size_t(rows) * m.hidden;
  const Array<float> x = RandomArray<float>(n), weight = RandomArray<float>(m.hidden), y(n);
  const std::string shape = Shape(m, "dim " + std::to_string(m.hidden) + Rows(rows));
  bench.Run("rms_norm", shape, {.bytes = 8.0 * n, .flops = 4.0 * n}, [&] {
    RmsNorm(bench.stream(), x.data(), weight.data(), 1e-5f, rows, m.hidden, y.data());
  });
  const Array<int32_t> order(Ascending(rows, rows));
  bench.Run("gather_rows", shape, {.bytes = 8.0 * n},
            [&] { GatherRows(bench.stream(), x.data(), order.data(), rows, m.hidden, y.data()); });
  Array<std::byte> int8(Int8ActivationBytes(rows, m.hidden));
  bench.Run("quantize_rows", shape, {.bytes = 5.25 * n, .flops = 4.0 * n}, [&] {
    QuantizeRows(bench.stream(), x.data(), rows, m.hidden,
                 Int8ActivationsAt(int8.data(), rows, m.hidden));
  });
  const Array<float> parts = RandomArray<float>(2 * n);
  bench.Run("rank_sum", shape + ", ranks 2", {.bytes = 12.0 * n, .flops = 1.0 * n}, [&] {
    RankSum(bench.stream(), y.data(), parts.data(), static_cast<int64_t>(n),
            static_cast<int64_t>(n), 0, 2);
  });
  const size_t inner = size_t(rows) * m.intermediate;
  const Array<float> gate = RandomArray<float>(inner), up = RandomArray<float>(inner), out(inner);
  bench.Run("silu_mul", Shape(m, "dim " + std::to_string(m.intermediate) + Rows(rows)),
            {.bytes = 12.0 * inner, .flops = 20.0 * inner}, [&] {
              SiluMul(bench.stream(), gate.data(), up.data(), static_cast<int64_t>(inner),
                      out.data());
            });
}

void Embeddings(Bench& bench, const Model& m, int rows) {
  for (const auto& [name, type] : {std::pair{"BF16", WeightType::kBf16},
                                   {"Q8_0", WeightType::kQ8_0},
                                   {"Q6_K", WeightType::kQ6_K}}) {
    const BlockShape format = WeightBlock(type);
    if (m.hidden % format.elements != 0) continue;
    const size_t row_bytes = size_t(m.hidden) / format.elements * format.bytes;
    const Array<std::byte> table = RandomArray<std::byte>(m.vocab * row_bytes);
    const Array<int32_t> ids(Ascending(rows, m.vocab));
    const Array<float> out(size_t(rows) * m.hidden);
    const WeightView view = {
        .type = type, .n = m.vocab, .k = m.hidden, .data = table.data(), .row_bytes = row_bytes};
    bench.Run("embed", Shape(m, name + Rows(rows)),
              {.bytes = rows * (double(row_bytes) + 4.0 * m.hidden)},
              [&] { Embed(bench.stream(), view, ids.data(), rows, out.data()); });
  }
}

void Positions(Bench& bench, const Model& m, const Scale& scale, int rows) {
  const int kv_size = m.num_kv_heads * m.head_dim, q_size = m.num_heads * m.head_dim;
  const Array<float> q = RandomArray<float>(size_t(rows) * q_size),
                     kv = RandomArray<float>(size_t(rows) * kv_size),
                     cos = RandomArray<float>(size_t(scale.context) * m.head_dim / 2);
  const Array<int32_t> positions(Ascending(rows, scale.context));
  bench.Run("rope", Shape(m, "heads " + std::to_string(m.num_heads) + Rows(rows)),
            {.bytes = 8.0 * q.size(), .flops = 3.0 * q.size()}, [&] {
              Rope(bench.stream(), q.data(), rows, m.num_heads, m.head_dim, positions.data(),
                   {.cos = cos.data(), .sin = cos.data()});
            });
  const KvPool pool((rows + scale.context - 1) / scale.context, scale.context, m.num_kv_heads,
                    m.head_dim);
  std::vector<int32_t> slots(rows);
  for (int i = 0; i < rows; ++i) {
    slots[i] = pool.table()[i / kBlockSize] * kBlockSize + i % kBlockSize;
  }
  const Array<int32_t> device_slots(slots);
  bench.Run("kv_write", Shape(m, "kv_heads " + std::to_string(m.num_kv_heads) + Rows(rows)),
            {.bytes = 2 * 6.0 * kv.size()}, [&] {
              KvWrite(bench.stream(), {.k = kv.data(),
                                       .v = kv.data(),
                                       .slots = device_slots.data(),
                                       .rows = rows,
                                       .pool = pool.view()});
            });
}

// ---- products -----------------------------------------------------------------------------------

// Random codes; scales of about 0.07.
Array<std::byte> RandomWeight(const QuantizedLayout& layout) {
  Array<std::byte> memory = RandomArray<std::byte>(layout.bytes());
  const std::vector<std::byte> scales(layout.bytes() - layout.scales_offset(), std::byte{0x2c});
  memory.Upload(scales.data(), layout.scales_offset(), scales.size());
  return memory;
}

void QuantizedProduct(Bench& bench, const Model& m, int64_t n, int64_t k,
                      const std::vector<int>& rows_list) {
  for (const auto& [name, type] : {std::pair{"Q8_0", WeightType::kQ8_0},
                                   {"Q4_0", WeightType::kQ4_0},
                                   {"Q4_1", WeightType::kQ4_1}}) {
    const QuantizedLayout layout(type, n, k);
    const Array<std::byte> memory = RandomWeight(layout);
    const DeviceWeight weight(DeviceMatrix{.type = type, .n = n, .k = k, .bytes = {}},
                              memory.data());
    for (const int rows : rows_list) {
      const Array<float> x = RandomArray<float>(size_t(rows) * k), y(size_t(rows) * n);
      Array<std::byte> scratch(Int8ActivationBytes(rows, k));
      const Int8Activations int8 = Int8ActivationsAt(scratch.data(), rows, k);
      QuantizeRows(bench.stream(), x.data(), rows, k, int8);
      const GemmOutput output = {.weight = &weight, .y = y.data(), .ldy = n};
      const bool few = rows <= 2 * kRowTile;
      bench.Run(few ? "quantized_gemv" : "quantized_gemm",
                Shape(m, name + (" " + Matrix(n, k)) + Rows(rows)),
                {.bytes = double(layout.bytes()) + double(scratch.bytes()) + double(y.bytes()),
                 .flops = 2.0 * n * k * rows,
                 .bound = few ? "memory" : "tensor cores"},
                [&] {
                  QuantizedGemm(bench.stream(), int8, rows, {&output, 1});
                });
    }
  }
}

// Rounding, cuBLASLt and finishing.
void Bf16Product(Bench& bench, const Model& m, int64_t n, int64_t k,
                 const std::vector<int>& rows_list) {
  Bf16Gemm bf16;
  bf16.Plan(n, k);
  const Array<Bf16> memory = RandomArray<Bf16>(size_t(PaddedOutputs(n)) * PaddedInputs(k));
  const DeviceWeight weight(DeviceMatrix{.type = WeightType::kBf16, .n = n, .k = k, .bytes = {}},
                            reinterpret_cast<const std::byte*>(memory.data()));
  for (const int rows : rows_list) {
    const Array<float> x = RandomArray<float>(size_t(rows) * k), y(size_t(rows) * n);
    Array<std::byte> scratch(GemmScratchBytes({.max_rows = rows, .max_n = n, .max_k = k}));
    const GemmOutput output = {.weight = &weight, .y = y.data(), .ldy = n};
    bench.Run("bf16_gemm", Shape(m, Matrix(n, k) + Rows(rows)),
              {.bytes = double(memory.bytes()) + double(x.bytes()) + double(y.bytes()),
               .flops = 2.0 * n * k * rows,
               .bound = rows <= kBf16TileRows ? "memory" : "tensor cores"},
              [&] {
                Gemm(bench.stream(), bf16, x.data(), rows, k, {&output, 1}, scratch.data());
              });
  }
}

void Products(Bench& bench, const Model& m, const Scale& scale) {
  std::vector<int> rows = scale.decode_rows;
  rows.push_back(scale.prefill_rows);
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{m.intermediate, m.hidden}, {m.hidden, m.intermediate}}) {
    QuantizedProduct(bench, m, n, k, rows);
    Bf16Product(bench, m, n, k, rows);
  }
  QuantizedProduct(bench, m, m.vocab, m.hidden, scale.decode_rows);
  Bf16Product(bench, m, m.vocab, m.hidden, scale.decode_rows);
}

// ---- attention and planes -----------------------------------------------------------------------

// Queries and outputs of rows at the end of each sequence.
class Queries {
 public:
  Queries(const Model& m, const KvPool& pool, int num_rows)
      : size_(size_t(pool.num_sequences()) * num_rows * m.num_heads * m.head_dim),
        q_(RandomArray<float>(size_)),
        out_(size_) {}
  AttentionCall Call(const Model& m, const KvPool& pool, const DevicePlan& plan) const {
    return {.q = q_.data(),
            .out = out_.data(),
            .num_heads = m.num_heads,
            .scale = 0.1f,
            .pool = pool.view(),
            .work = plan.work(),
            .scratch = plan.scratch()};
  }
  double bytes() const { return 8.0 * size_; }
  // 4 per channel, pair and token that it sees.
  double Flops(const KvPool& pool, int num_rows) const {
    return 4.0 * size_ * (pool.context - (num_rows - 1) / 2.0);
  }

 private:
  size_t size_;
  Array<float> q_, out_;
};

void BlockAttention(Bench& bench, const Model& m, const KvPool& pool, int num_rows) {
  const DevicePlan plan(pool, num_rows, m.num_heads, {});
  const Queries queries(m, pool, num_rows);
  const AttentionCall call = queries.Call(m, pool, plan);
  const bool wide = call.work.num_wide > 0;
  bench.Run(wide ? "attention_wide" : "attention_narrow",
            Shape(m, "sequences " + std::to_string(pool.num_sequences()) + ", context " +
                         std::to_string(pool.context) + Rows(num_rows)),
            {.bytes = pool.bytes() + queries.bytes(),
             .flops = queries.Flops(pool, num_rows),
             .bound = wide ? "tensor cores" : "memory"},
            [&] { Attention(bench.stream(), call); });
}

void AttentionOnPlanes(Bench& bench, const Model& m, const KvPool& pool, const EncodedKv& planes,
                       int num_planes) {
  const DevicePlan plan(pool, 1, m.num_heads, {.wide = false});
  const Queries queries(m, pool, 1);
  std::vector<PlaneBlocks> blocks;
  for (int s = 0; s < pool.num_sequences(); ++s) {
    const int count = pool.context / kBlockSize;
    blocks.push_back({.begin = 0, .end = count, .first_page = s * count / kPageBlocks});
  }
  const Array<PlaneBlocks> device_blocks(blocks);
  const Array<PlanePage> pages(planes.AttentionPages(num_planes));
  const PlaneAttentionCall call = {.attention = queries.Call(m, pool, plan),
                                   .blocks = device_blocks.data(),
                                   .pages = pages.data()};
  bench.Run("plane_attention",
            Shape(m, "sequences " + std::to_string(pool.num_sequences()) + ", context " +
                         std::to_string(pool.context) + ", planes " + std::to_string(num_planes)),
            {.bytes = planes.PlaneBytes(planes.size(), num_planes) + queries.bytes(),
             .flops = queries.Flops(pool, 1)},
            [&] { PlaneAttention(bench.stream(), call); });
}

std::string Pages(int n) { return "pages " + std::to_string(n); }

void Codec(Bench& bench, const Model& m, const EncodedKv& planes, int pages) {
  const double page_bytes = double(kPageTokens) * m.head_dim * sizeof(Bf16);
  const double elements = pages * page_bytes / sizeof(Bf16);
  bench.Run(
      "plane_encode", Shape(m, Pages(pages)),
      {.bytes = pages * page_bytes + planes.PlaneBytes(pages, kNumPlanes), .flops = 30 * elements},
      [&] { PlaneEncode(bench.stream(), planes.device_pages(), pages, planes.plane_bytes()); });
  const Array<uint8_t> ok(pages);
  for (const int num_planes : {3, kNumPlanes}) {
    const Array<PlaneDecodePage> list(planes.DecodePages(num_planes));
    bench.Run("plane_decode", Shape(m, Pages(pages) + ", planes " + std::to_string(num_planes)),
              {.bytes = pages * page_bytes + planes.PlaneBytes(pages, num_planes),
               .flops = 25 * elements},
              [&] { PlaneDecode(bench.stream(), list.data(), pages, ok.data()); });
  }
}

void Gather(Bench& bench, const Model& m, const EncodedKv& planes, int pages) {
  const PinnedMemory pinned = AllocatePinned(pages * planes.page_room());
  if (pinned == nullptr) AbortOnError(cudaErrorMemoryAllocation, "pinned memory");
  bench.Run("plane_gather", Shape(m, Pages(pages) + ", to the host"),
            {.bytes = planes.PlaneBytes(pages, kNumPlanes), .bound = "bus"}, [&] {
              GatherPlanes(bench.stream(), {.from = planes.rooms(),
                                            .page_stride = planes.page_room(),
                                            .offset = planes.plane_offset(),
                                            .plane_bytes = planes.plane_bytes(),
                                            .num_pages = pages,
                                            .to = pinned.get()});
            });
}

// Planes into chunks that travel from device memory, and the chunks' checksums.
void Chunks(Bench& bench, const Model& m, const EncodedKv& planes, int pages) {
  const Array<std::byte> chunks = RandomArray<std::byte>(pages * planes.page_room());
  const Array<PlaneMove> moves(planes.Moves(pages, chunks.data()));
  bench.Run("plane_store", Shape(m, Pages(pages)),
            {.bytes = 2 * planes.PlaneBytes(pages, kNumPlanes)},
            [&] { StorePlanes(bench.stream(), moves.data(), static_cast<int>(moves.size())); });
  const size_t chunk_bytes = chunks.size() / kMaxChecksumChunks / 16 * 16;
  std::vector<std::span<const std::byte>> list;
  for (int i = 0; i < kMaxChecksumChunks; ++i) {
    list.push_back({chunks.data() + i * chunk_bytes, chunk_bytes});
  }
  const Array<unsigned long long> sums(list.size());
  bench.Run("chunk_checksum",
            Shape(m, std::to_string(list.size()) + " x " + std::to_string(chunk_bytes) + " bytes"),
            {.bytes = double(chunk_bytes) * list.size()},
            [&] { ChunkChecksum(bench.stream(), list, sums.data()); });
}

void Kv(Bench& bench, const Model& m, const Scale& scale) {
  const KvPool one(1, scale.context, m.num_kv_heads, m.head_dim);
  BlockAttention(bench, m, one, 1);
  BlockAttention(bench, m, one, scale.prefill_rows);
  const KvPool pool(scale.num_sequences, scale.context, m.num_kv_heads, m.head_dim);
  BlockAttention(bench, m, pool, 1);
  const EncodedKv planes(bench.stream(), pool);
  for (const int num_planes : {1, 3, 4}) AttentionOnPlanes(bench, m, pool, planes, num_planes);
  const int batch = std::min(32, planes.size());  // PlaneEncoder's
  Codec(bench, m, planes, batch);
  if (planes.size() > batch) Codec(bench, m, planes, planes.size());
  Gather(bench, m, planes, batch);
  Chunks(bench, m, planes, batch);
}

// ---- choices ------------------------------------------------------------------------------------

void Choices(Bench& bench, const Model& m, int rows) {
  const Array<float> logits = RandomArray<float>(size_t(rows) * m.vocab);
  Array<std::byte> scratch(SampleScratchBytes(rows, m.vocab));
  const Array<Choice> choices(rows);
  for (const float temperature : {0.0f, 0.8f}) {
    const Array<RowChoice> params(std::vector<RowChoice>(
        rows, {.wanted = true, .temperature = temperature, .seed = 1, .position = 5}));
    bench.Run("sample",
              Shape(m, std::string(temperature == 0 ? "greedy" : "temperature 0.8") + Rows(rows)),
              {.bytes = double(logits.bytes())}, [&] {
                Sample(bench.stream(), {.logits = logits.data(),
                                        .ld = m.vocab,
                                        .rows = rows,
                                        .vocab_size = m.vocab,
                                        .params = params.data(),
                                        .scratch = scratch.data(),
                                        .choices = choices.data()});
              });
  }
}

void Acceptance(Bench& bench, int num_groups) {
  constexpr int kDrafts = 8;
  std::vector<VerifyGroup> groups;
  for (int i = 0; i < num_groups; ++i) {
    groups.push_back({.row_begin = i * (kDrafts + 1),
                      .num_rows = kDrafts + 1,
                      .draft_begin = i * kDrafts,
                      .num_drafts = kDrafts});
  }
  const Array<VerifyGroup> device_groups(groups);
  const Array<TokenId> drafts(std::vector<TokenId>(num_groups * kDrafts, 7)), stop_tokens(1);
  const Array<Choice> choices(std::vector<Choice>(num_groups * (kDrafts + 1), {.token = 7}));
  const Array<GroupAcceptance> results(num_groups);
  bench.Run("accept", "groups " + std::to_string(num_groups) + ", drafts 8",
            {.bytes = 12.0 * num_groups * kDrafts, .bound = "latency"}, [&] {
              Accept(bench.stream(), {.groups = device_groups.data(),
                                      .num_groups = num_groups,
                                      .drafts = drafts.data(),
                                      .stop_tokens = stop_tokens.data(),
                                      .choices = choices.data(),
                                      .results = results.data()});
            });
}

void Everything(Bench& bench, const Model& m, const Scale& scale) {
  for (const int rows : {scale.decode_rows.back(), scale.prefill_rows}) {
    Norms(bench, m, rows);
    Embeddings(bench, m, rows);
    Positions(bench, m, scale, rows);
  }
  Products(bench, m, scale);
  Kv(bench, m, scale);
  for (const int rows : scale.decode_rows) Choices(bench, m, rows);
  Acceptance(bench, 64);
}

int Main(bool small) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "no CUDA device: %s\n", cudaGetErrorString(error));
    return 1;
  }
  if (small) {
    Bench bench({.num_samples = 1, .copy_bytes = size_t{1} << 20, .flush_bytes = 1024});
    Everything(bench, kTiny, kSmall);
  } else {
    Bench bench({});
    for (const Model* model : {&kSmolLm2, &kLlama}) Everything(bench, *model, kFull);
  }
  return 0;
}

}  // namespace
}  // namespace lynx::cuda

int main(int argc, char** argv) {
  const bool small = argc == 2 && std::strcmp(argv[1], "--small") == 0;
  if (argc > 1 && !small) {
    std::fprintf(stderr, "usage: %s [--small]\n", argv[0]);
    return 1;
  }
  return lynx::cuda::Main(small);
}
