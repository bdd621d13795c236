// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/quantize.h"

namespace lynx::cpu {
namespace {

// Lines of 64 bytes for a block of 32 inputs of 16 outputs.
int LinesPerBlock(WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return 16;
    case WeightType::kQ8_0:
      return 8;
    default:
      return 4;
  }
}

// Rows of 16 scales for a block.
int ScalesPerBlock(WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return 0;
    case WeightType::kQ4_1:
      return 2;
    default:
      return 1;
  }
}

// One block of one output before it is spread over the panel: its dword of every line, and its
// scales (for Q4_1 the minimum second).
struct OutputBlock {
  uint32_t dwords[16];
  uint16_t scales[2];
};

void BlockFromFloats(const float* x, int size, OutputBlock& out) {
  uint16_t bits[kBlockInputs] = {};
  for (int i = 0; i < size; ++i) bits[i] = ToBf16(x[i]).bits;
  std::memcpy(out.dwords, bits, sizeof(bits));
}

// The kernels take unsigned codes.
void BlockFromCodes(const int8_t* codes, OutputBlock& out) {
  std::memcpy(out.dwords, codes, kBlockInputs);
  for (int i = 0; i < 8; ++i) out.dwords[i] ^= 0x80808080u;
}

// Block b of a file row, in the form of PackedType(type). `floats` has room for 256 values and
// keeps the decoded K-quant block that b belongs to.
void LoadBlock(WeightType type, const std::byte* row, int64_t k, int64_t b, float* floats,
               OutputBlock& out) {
  const BlockShape format = WeightBlock(type);
  const int64_t first = b * kBlockInputs;
  const std::byte* block = row + first / format.elements * format.bytes;
  int8_t codes[kBlockInputs];
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16: {
      const int size = static_cast<int>(std::min<int64_t>(kBlockInputs, k - first));
      DequantizeRow(type, block, size, floats);
      BlockFromFloats(floats, size, out);
      return;
    }
    case WeightType::kQ4_0:  // a file block's bytes 4 g .. 4 g + 3 are the panel's dword g
      std::memcpy(out.scales, block, 2);
      std::memcpy(out.dwords, block + 2, 16);
      return;
    case WeightType::kQ4_1:
      std::memcpy(out.scales, block, 4);
      std::memcpy(out.dwords, block + 4, 16);
      return;
    case WeightType::kQ8_0:
      std::memcpy(out.scales, block, 2);
      std::memcpy(codes, block + 2, kBlockInputs);
      break;
    case WeightType::kQ5_0:
      WidenQ5_0(block, out.scales, codes);
      break;
    case WeightType::kIQ4_NL:
      WidenIQ4_NL(block, out.scales, codes);
      break;
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kIQ4_XS:
      if (first % format.elements == 0) DequantizeRow(type, block, format.elements, floats);
      QuantizeQ8_0(floats + first % format.elements, out.scales, codes);
      break;
  }
  BlockFromCodes(codes, out);
}

void PackPanel(const WeightView& view, int64_t p, PackedWeight& weight) {
  const WeightType type = weight.type();
  const int lines = LinesPerBlock(type);
  const int scales = ScalesPerBlock(type);
  const int64_t first = p * kPanelOutputs;
  const int outputs = static_cast<int>(std::min<int64_t>(kPanelOutputs, view.n - first));
  if (outputs < kPanelOutputs) {
    std::memset(weight.panel(p), 0, weight.panel_stride());
    std::memset(weight.panel_scales(p), 0, weight.scale_stride());
  }
  const RawWeight raw(view);
  for (int j = 0; j < outputs; ++j) {
    const std::byte* row = raw.row(first + j);
    std::byte* to = weight.panel(p) + j * sizeof(uint32_t);
    std::byte* scale_to = weight.panel_scales(p) + j * sizeof(uint16_t);
    float floats[256];
    OutputBlock block;
    for (int64_t b = 0; b < NumBlocks(view.k); ++b) {
      LoadBlock(view.type, row, view.k, b, floats, block);
      for (int i = 0; i < lines; ++i, to += kLineBytes) std::memcpy(to, block.dwords + i, 4);
      for (int i = 0; i < scales; ++i, scale_to += kPanelOutputs * sizeof(uint16_t)) {
        std::memcpy(scale_to, block.scales + i, 2);
      }
    }
  }
}

}  // namespace

WeightType PackedType(WeightType file_type) {
  switch (file_type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
      return WeightType::kBf16;
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
      return file_type;
    default:
      return WeightType::kQ8_0;
  }
}

PackedWeight::PackedWeight(WeightType type, int64_t n, int64_t k)
    : type_(type),
      n_(n),
      k_(k),
      panel_stride_(size_t(NumBlocks(k)) * LinesPerBlock(type) * kLineBytes),
      scale_stride_(size_t(NumBlocks(k)) * ScalesPerBlock(type) * kPanelOutputs * sizeof(uint16_t)),
      code_bytes_(size_t(NumPanels(n)) * panel_stride_),
      size_(code_bytes_ + size_t(NumPanels(n)) * scale_stride_) {}

std::unique_ptr<PackedWeight> PackedWeight::Make(WeightType type, int64_t n, int64_t k,
                                                 WeightMemory& memory) {
  std::unique_ptr<PackedWeight> weight(new PackedWeight(type, n, k));
  weight->memory_ = memory.Take(weight->size_);
  weight->data_ = weight->memory_.get();
  return weight->memory_ == nullptr ? nullptr : std::move(weight);
}

std::unique_ptr<PackedWeight> PackedWeight::Wrap(WeightType type, int64_t n, int64_t k,
                                                 std::span<const std::byte> packed) {
  std::unique_ptr<PackedWeight> weight(new PackedWeight(type, n, k));
  if (packed.size() != weight->size_) return nullptr;
  weight->data_ = packed.data();
  return weight;
}

std::unique_ptr<PackedWeight> PackForFast(ThreadPool& pool, const WeightView& view,
                                          WeightMemory& memory) {
  auto weight = PackedWeight::Make(PackedType(view.type), view.n, view.k, memory);
  if (weight == nullptr) return nullptr;
  const int64_t panels = NumPanels(view.n);
  const int threads = pool.num_threads();
  pool.Parallel([&](int thread) {
    const int64_t end = panels * (thread + 1) / threads;
    for (int64_t p = panels * thread / threads; p < end; ++p) PackPanel(view, p, *weight);
  });
  return weight;
}

std::unique_ptr<Weight> CpuBackend::PackWeight(const WeightView& view) {
  if (options_.compute == Compute::kF32) return std::make_unique<RawWeight>(view);
  return PackForFast(pool_, view, weight_memory_);
}

// One layout for every instruction set. Its number changes with what PackForFast writes.
const char* CpuBackend::packed_layout() const {
  return options_.compute == Compute::kF32 ? nullptr : "cpu panels 1";
}

std::unique_ptr<Weight> CpuBackend::WrapPacked(const WeightView& view,
                                               std::span<const std::byte> packed) {
  return PackedWeight::Wrap(PackedType(view.type), view.n, view.k, packed);
}

}  // namespace lynx::cpu
