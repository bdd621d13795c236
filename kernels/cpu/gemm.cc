// SPDX-License-Identifier: Apache-2.0
//
// A call runs in slabs of rows, so that the converted activations stay bounded:
//   1. activations are converted, once for all outputs, into row groups;
//   2. the panels of all outputs are split over the threads (panel_runs.h); each thread takes a few
//      panels at a time, reads them from memory once, and runs every row group against them;
//   3. finished sums get their bias and go to y.
// Neither groups nor threads nor slabs change the order of operations of any output.
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/pack.h"

namespace lynx::cpu {
namespace {

constexpr int kMaxSlabRows = 512;
constexpr int64_t kMinSlabRows = 64;  // so that weights are not read from memory too often
constexpr int kForkRows = 4;          // converting fewer rows costs less than a fork
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kF32Chunk = 512;  // inputs decoded at a time: two panels then fit the L2 cache
constexpr int kF32Panels = 2;

// Rows cut into groups of nearly equal size, none above the limit, all but the last of whole units.
// The limit is a multiple of the unit.
struct RowGroups {
  RowGroups(int num_rows, int max_rows, int unit = 1)
      : rows(num_rows),
        unit(unit),
        count((rows + max_rows - 1) / max_rows),
        units((rows + unit - 1) / unit) {}
  int begin(int group) const {
    return std::min(rows, static_cast<int>(int64_t{units} * group / count) * unit);
  }
  int size(int group) const { return begin(group + 1) - begin(group); }
  int rows;
  int unit;
  int count;
  int units;
};

RowGroups Bf16Groups(int num_rows, const Bf16Kernels& kernels) {
  return RowGroups(num_rows, kernels.max_rows, kernels.row_unit);
}

struct Slab {
  const float* x;  // [rows, k]
  int row_begin;   // in the call
  int rows;
  int64_t k;
  int64_t blocks;  // of 32 inputs
};

// Calls f(group's first row, parameters of its conversion) for each group, the blocks split over
// the threads.
template <typename F>
void ForConversions(ThreadPool& pool, const Slab& slab, const RowGroups& groups, const F& f) {
  const auto convert = [&](int64_t block_begin, int64_t block_end) {
    for (int g = 0; g < groups.count; ++g) {
      f(groups.begin(g), ConvertParams{.x = slab.x + groups.begin(g) * slab.k,
                                       .rows = groups.size(g),
                                       .k = slab.k,
                                       .block_begin = block_begin,
                                       .block_end = block_end});
    }
  };
  if (slab.rows < kForkRows) {
    ScopedFlushToZero flush;
    convert(0, slab.blocks);
    return;
  }
  const int threads = pool.num_threads();
  pool.Parallel(
      [&](int t) { convert(slab.blocks * t / threads, slab.blocks * (t + 1) / threads); });
}

// The 8-bit rows of the group that starts at row `first`.
Int8Rows Int8Group(const GemmActivations& a, const Slab& slab, int first) {
  const int64_t index = first * slab.blocks;
  return {.codes = a.codes.get() + index * kBlockInputs,
          .scales = a.scales.get() + index,
          .scaled_sums = a.scaled_sums.get() + index,
          .sums = a.sums.get() + index};
}

// Calls f(output, first panel, panels) for what this thread takes, `step` panels at a time.
template <typename F>
void ForPanels(std::span<const GemmOutput> outputs, int thread, int step, PanelRuns& runs,
               const F& f) {
  runs.Take(thread, step, [&](int64_t begin, int64_t end) {
    int64_t base = 0;
    for (const GemmOutput& out : outputs) {
      const int64_t panels = NumPanels(out.weight->n());
      const int64_t first = std::max(begin - base, int64_t{0}), last = std::min(end - base, panels);
      if (first < last) f(out, first, static_cast<int>(last - first));
      base += panels;
    }
  });
}

int64_t TotalPanels(std::span<const GemmOutput> outputs) {
  int64_t total = 0;
  for (const GemmOutput& out : outputs) total += NumPanels(out.weight->n());
  return total;
}

// Adds the bias and stores, or adds to y. acc is [rows][panels * 16].
void Finish(const GemmOutput& out, int first_row, int rows, int64_t first_panel, int panels,
            const float* acc) {
  const int64_t first = first_panel * kPanelOutputs;
  const int64_t width = int64_t{panels} * kPanelOutputs;
  const int64_t n = std::min(width, out.weight->n() - first);
  for (int r = 0; r < rows; ++r) {
    float* y = out.y + (first_row + r) * out.ldy + first;
    const float* sum = acc + r * width;
    if (out.bias != nullptr && out.accumulate) {
      for (int64_t i = 0; i < n; ++i) y[i] += sum[i] + out.bias[first + i];
    } else if (out.bias != nullptr) {
      for (int64_t i = 0; i < n; ++i) y[i] = sum[i] + out.bias[first + i];
    } else if (out.accumulate) {
      for (int64_t i = 0; i < n; ++i) y[i] += sum[i];
    } else {
      std::copy(sum, sum + n, y);
    }
  }
}

// ---- Compute::kFast ----------------------------------------------------------------------------

bool IsBf16(const GemmOutput& out) { return out.weight->type() == WeightType::kBf16; }

GemmKernels::Kernel KernelFor(const GemmKernels& kernels, WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return kernels.bf16.multiply;
    case WeightType::kQ4_0:
      return kernels.q4_0;
    case WeightType::kQ4_1:
      return kernels.q4_1;
    default:
      return kernels.q8_0;
  }
}

void ConvertForFast(ThreadPool& pool, const GemmKernels& kernels, const Slab& slab,
                    std::span<const GemmOutput> outputs, GemmActivations& a) {
  const size_t blocks = size_t(slab.rows) * slab.blocks;
  if (std::any_of(outputs.begin(), outputs.end(), IsBf16)) {
    float* floats = a.floats.Reserve(blocks * kBlockInputs);
    ForConversions(pool, slab, Bf16Groups(slab.rows, kernels.bf16),
                   [&](int first, const ConvertParams& params) {
                     kernels.bf16.round_rows(params, floats + first * slab.blocks * kBlockInputs);
                   });
  }
  if (!std::all_of(outputs.begin(), outputs.end(), IsBf16)) {
    a.codes.Reserve(blocks * kBlockInputs);
    a.scales.Reserve(blocks);
    a.scaled_sums.Reserve(blocks);
    a.sums.Reserve(blocks);
    ForConversions(pool, slab, RowGroups(slab.rows, kernels.max_int8_rows),
                   [&](int first, const ConvertParams& params) {
                     kernels.quantize_rows(params, Int8Group(a, slab, first));
                   });
  }
}

void RunFast(const GemmKernels& kernels, const Slab& slab, const GemmActivations& a,
             const GemmOutput& out, int64_t first_panel, int panels, GemmThreadScratch& scratch) {
  const auto& weight = static_cast<const PackedWeight&>(*out.weight);
  const bool bf16 = weight.type() == WeightType::kBf16;
  const auto kernel = KernelFor(kernels, weight.type());
  const RowGroups groups =
      bf16 ? Bf16Groups(slab.rows, kernels.bf16) : RowGroups(slab.rows, kernels.max_int8_rows);
  GemmStep step{.panels = panels,
                .blocks = slab.blocks,
                .weights = weight.panel(first_panel),
                .weight_stride = weight.panel_stride(),
                .scales = weight.panel_scales(first_panel),
                .scale_stride = weight.scale_stride(),
                .tile_rows = &scratch.tile_rows,
                .acc = scratch.acc.get()};
  const int64_t block_bytes = weight.panel_stride() / slab.blocks;
  for (int g = 0; g < groups.count; ++g) {
    const int first = groups.begin(g);
    step.rows = groups.size(g);
    // One group reads from memory as it goes; of several, the last fetches the next panels.
    if (groups.count == 1) {
      step.prefetch_blocks = kPrefetchBytes / block_bytes;
    } else if (g == groups.count - 1) {
      step.prefetch_blocks = slab.blocks * panels;
    }
    if (bf16) {
      step.x = a.floats.get() + first * slab.blocks * kBlockInputs;
    } else {
      step.q = Int8Group(a, slab, first);
    }
    kernel(step);
    Finish(out, slab.row_begin + first, step.rows, first_panel, panels, step.acc);
  }
}

void FastSlab(ThreadPool& pool, const GemmKernels& kernels, const Slab& slab,
              std::span<const GemmOutput> outputs, GemmScratch& scratch) {
  ConvertForFast(pool, kernels, slab, outputs, scratch.activations);
  // A few panels stay in the cache while all row groups pass; with one group nothing has to.
  const int max_rows = std::max(kernels.bf16.max_rows, kernels.max_int8_rows);
  const int panels_at_once =
      slab.rows <= std::min(kernels.bf16.max_rows, kernels.max_int8_rows) ? 4 : 2;
  scratch.runs.Split(TotalPanels(outputs), pool.num_threads());
  pool.Parallel([&](int t) {
    GemmThreadScratch& own = scratch.threads[t];
    own.acc.Reserve(size_t(max_rows) * panels_at_once * kPanelOutputs);
    ForPanels(outputs, t, panels_at_once, scratch.runs,
              [&](const GemmOutput& out, int64_t first_panel, int panels) {
                RunFast(kernels, slab, scratch.activations, out, first_panel, panels, own);
              });
    if (std::exchange(own.tile_rows, 0) != 0) kernels.bf16.release();
  });
}

// ---- Compute::kF32 -----------------------------------------------------------------------------

// Decodes inputs [first, first + size) of one panel to [padded][16]; the padding, and outputs past
// n, are zero.
void DecodePanel(const GemmKernels& kernels, const RawWeight& weight, int64_t panel, int64_t first,
                 int64_t size, int64_t padded, float* rows, float* out) {
  const BlockShape block = WeightBlock(weight.type());
  for (int j = 0; j < kPanelOutputs; ++j) {
    const int64_t output = panel * kPanelOutputs + j;
    float* row = rows + j * padded;
    const int64_t decoded = output < weight.n() ? size : 0;
    if (decoded > 0) {
      const std::byte* from = weight.row(output) + first / block.elements * block.bytes;
      DequantizeRow(weight.type(), from, decoded, row);
    }
    std::fill(row + decoded, row + padded, 0.0f);
  }
  kernels.transpose16(rows, padded, out);
}

void RunF32(const GemmKernels& kernels, const Slab& slab, const GemmActivations& a,
            const GemmOutput& out, int64_t first_panel, int panels, GemmThreadScratch& scratch) {
  const auto& weight = static_cast<const RawWeight&>(*out.weight);
  const RowGroups groups(slab.rows, kernels.max_f32_rows);
  const int width = panels * kPanelOutputs;
  float* acc = scratch.acc.get();
  std::fill(acc, acc + size_t(slab.rows) * width, 0.0f);
  GemmStep step{.panels = panels,
                .weights = reinterpret_cast<const std::byte*>(scratch.panels.get()),
                .weight_stride = kF32Chunk * kLineBytes};
  for (int64_t first = 0; first < slab.k; first += kF32Chunk) {
    const int64_t size = std::min(kF32Chunk, slab.k - first);
    step.blocks = NumBlocks(size);
    for (int p = 0; p < panels; ++p) {
      DecodePanel(kernels, weight, first_panel + p, first, size, step.blocks * kBlockInputs,
                  scratch.rows.get(), scratch.panels.get() + p * kF32Chunk * kPanelOutputs);
    }
    for (int g = 0; g < groups.count; ++g) {
      step.rows = groups.size(g);
      step.x = a.floats.get() + groups.begin(g) * slab.blocks * kBlockInputs + first * step.rows;
      step.acc = acc + groups.begin(g) * width;
      kernels.f32(step);
    }
  }
  Finish(out, slab.row_begin, slab.rows, first_panel, panels, acc);
}

void F32Slab(ThreadPool& pool, const GemmKernels& kernels, const Slab& slab,
             std::span<const GemmOutput> outputs, GemmScratch& scratch) {
  float* floats =
      scratch.activations.floats.Reserve(size_t(slab.rows) * slab.blocks * kBlockInputs);
  ForConversions(pool, slab, RowGroups(slab.rows, kernels.max_f32_rows),
                 [&](int first, const ConvertParams& params) {
                   kernels.copy_rows(params, floats + first * slab.blocks * kBlockInputs);
                 });
  scratch.runs.Split(TotalPanels(outputs), pool.num_threads());
  pool.Parallel([&](int t) {
    GemmThreadScratch& own = scratch.threads[t];
    own.acc.Reserve(size_t(slab.rows) * kF32Panels * kPanelOutputs);
    own.panels.Reserve(size_t{kF32Panels} * kF32Chunk * kPanelOutputs);
    own.rows.Reserve(size_t{kF32Chunk} * kPanelOutputs);
    ForPanels(outputs, t, kF32Panels, scratch.runs,
              [&](const GemmOutput& out, int64_t first_panel, int panels) {
                RunF32(kernels, slab, scratch.activations, out, first_panel, panels, own);
              });
  });
}

// A multiple of every kernel's unit.
int SlabRows(const Bf16Kernels& kernels, const GemmCall& call) {
  const bool limited = kernels.max_slab_inputs > 0 && call.compute == Compute::kFast &&
                       std::any_of(call.outputs.begin(), call.outputs.end(), IsBf16);
  if (!limited) return kMaxSlabRows;
  const int64_t rows = kernels.max_slab_inputs / call.k / kMinSlabRows * kMinSlabRows;
  return static_cast<int>(std::clamp<int64_t>(rows, kMinSlabRows, kMaxSlabRows));
}

}  // namespace

void RunGemm(ThreadPool& pool, const GemmKernels& kernels, const GemmCall& call,
             GemmScratch& scratch) {
  scratch.threads.resize(pool.num_threads());
  const int slab_rows = SlabRows(kernels.bf16, call);
  for (int begin = 0; begin < call.rows; begin += slab_rows) {
    const Slab slab{.x = call.x + begin * call.k,
                    .row_begin = begin,
                    .rows = std::min(slab_rows, call.rows - begin),
                    .k = call.k,
                    .blocks = NumBlocks(call.k)};
    const auto run = call.compute == Compute::kFast ? FastSlab : F32Slab;
    run(pool, kernels, slab, call.outputs, scratch);
  }
}

void CpuBackend::Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) {
  RunGemm(pool_, GemmKernelsFor(options_.target, rows),
          {.x = x, .rows = rows, .k = k, .outputs = outputs, .compute = options_.compute},
          *gemm_scratch_);
}

void CpuBackend::Logits(const LogitsParams& params) {
  Gemm(params.x, params.rows, params.k, {&params.head, 1});
}

}  // namespace lynx::cpu
