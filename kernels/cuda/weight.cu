// SPDX-License-Identifier: Apache-2.0
// From the CPU's panels, which have 16 outputs too (kernels/cpu/gemm_kernels.h), to the device's.
#include <cstring>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/pack.h"
#include "kernels/cuda/weight.h"

namespace lynx::cuda {
namespace {

using cpu::kLineBytes;
using cpu::kPanelOutputs;

// The dword of output `output` in line `line` of a panel's block.
uint32_t PanelWord(const std::byte* block, int line, int output) {
  uint32_t word;
  std::memcpy(&word, block + line * kLineBytes + output * 4, sizeof(word));
  return word;
}

// One lane's words of one block: 4 of Q8_0, 2 of Q4.
void PackLane(WeightType type, const std::byte* block, int lane, std::byte* to) {
  const int g = lane / 4, t = lane % 4;
  uint32_t words[4] = {PanelWord(block, t, g), PanelWord(block, t, g + 8)};
  size_t count = 2;
  if (type == WeightType::kQ8_0) {
    words[2] = PanelWord(block, t + 4, g);
    words[3] = PanelWord(block, t + 4, g + 8);
    for (uint32_t& word : words) word ^= 0x80808080u;  // the CPU's codes are unsigned
    count = 4;
  }
  std::memcpy(to, words, count * sizeof(uint32_t));
}

void PackScales(const std::byte* scales, int64_t scale_bytes, std::byte* to) {
  const int kinds = static_cast<int>(scale_bytes / (kPanelOutputs * 2));  // scales, minima
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 2 * kinds; ++i, to += 2) {
      std::memcpy(to, scales + (i / 2 * kPanelOutputs + g + i % 2 * 8) * 2, 2);
    }
  }
}

void PackQuantizedPanel(const cpu::PackedWeight& weight, const QuantizedLayout& layout, int64_t p,
                        std::byte* to) {
  const int64_t code_bytes = 512 / layout.chunk_blocks;  // of a block
  const int64_t lane_bytes = code_bytes / 32;
  for (int64_t b = 0; b < layout.blocks; ++b) {
    const int64_t chunk = p * layout.chunks + b / layout.chunk_blocks;
    std::byte* codes = to + chunk * 512 + b % layout.chunk_blocks * lane_bytes;
    for (int lane = 0; lane < 32; ++lane) {
      PackLane(weight.type(), weight.panel(p) + b * code_bytes, lane, codes + lane * 16);
    }
    const int64_t scales = p * layout.chunks * layout.chunk_blocks + b;
    PackScales(weight.panel_scales(p) + b * layout.scale_bytes, layout.scale_bytes,
               to + layout.scales_offset() + scales * layout.scale_bytes);
  }
}

void PackBf16Panel(const cpu::PackedWeight& weight, int64_t p, std::byte* to) {
  const int64_t row_bytes = PaddedInputs(weight.k()) * 2;
  for (int64_t pair = 0; pair < row_bytes / 4; ++pair) {
    for (int i = 0; i < kPanelOutputs; ++i) {
      std::memcpy(to + (p * kPanelOutputs + i) * row_bytes + pair * 4,
                  weight.panel(p) + pair * kLineBytes + i * 4, 4);
    }
  }
}

}  // namespace

QuantizedLayout::QuantizedLayout(WeightType type, int64_t n, int64_t k)
    : panels(cpu::NumPanels(n)),
      blocks(cpu::NumBlocks(k)),
      chunk_blocks(type == WeightType::kQ8_0 ? 1 : 2),
      chunks((blocks + chunk_blocks - 1) / chunk_blocks),
      scale_bytes(kPanelOutputs * 2 * (type == WeightType::kQ4_1 ? 2 : 1)) {}

DeviceMatrix PackForDevice(cpu::ThreadPool& pool, const WeightView& view) {
  const auto weight = cpu::PackForFast(pool, view);
  DeviceMatrix out{.type = weight->type(), .n = view.n, .k = view.k, .bytes = {}};
  const bool bf16 = out.type == WeightType::kBf16;
  const QuantizedLayout layout(out.type, view.n, view.k);
  out.bytes.resize(bf16 ? size_t(PaddedOutputs(view.n)) * PaddedInputs(view.k) * 2
                        : layout.bytes());
  const int threads = pool.num_threads();
  pool.Parallel([&](int thread) {
    const int64_t end = layout.panels * (thread + 1) / threads;
    for (int64_t p = layout.panels * thread / threads; p < end; ++p) {
      if (bf16) {
        PackBf16Panel(*weight, p, out.bytes.data());
      } else {
        PackQuantizedPanel(*weight, layout, p, out.bytes.data());
      }
    }
  });
  return out;
}

}  // namespace lynx::cuda
