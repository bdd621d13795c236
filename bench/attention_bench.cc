// SPDX-License-Identifier: Apache-2.0
// Attention, KV writes and the thread pool of the CPU back-end; one JSON line per case.
//
//   attention_bench [target] [threads …]
//
// The shape is SmolLM2's: 9 heads, 3 KV heads, head_dim 64 (and 128). Attention goes round the
// layers of a pool that is larger than the caches. Rates are those of the fastest twentieth of the
// calls, what the machine does when nobody else is on it: "gb_s" of KV, each byte counted once, and
// "of_read" beside reading memory; "gflops" and "of_fma" beside the FMA peak for vectors as wide.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/machine_probe.h"

namespace lynx::cpu {
namespace {

constexpr int kNumHeads = 9;
constexpr int kNumKvHeads = 3;

struct Times {
  double low_us = 0;  // 5th percentile
  double median_us = 0;
  double spread = 0;  // (third quartile − first) / median
};

// Calls f at least 20 times and for about 0.2 s.
Times Measure(const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> us;
  f();
  for (double total = 0; us.size() < 20 || (total < 2e5 && us.size() < 4000);) {
    const auto start = Clock::now();
    f();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    total += us.back();
  }
  std::sort(us.begin(), us.end());
  const size_t n = us.size();
  return {us[n / 20], us[n / 2], (us[n * 3 / 4] - us[n / 4]) / us[n / 2]};
}

class Bench {
 public:
  Bench(Target target, int num_threads)
      : target_(target),
        backend_(CpuBackend::Create({.num_threads = num_threads, .target = target})) {}
  bool supported() const { return backend_ != nullptr; }

  void ForkJoin();
  void Machine();
  void Attention(int head_dim, int depth, int rows);
  void KvWrite(int head_dim, int rows);

 private:
  void Print(const char* name, const std::string& params, const Times& times, double flop,
             double bytes);

  const Target target_;
  std::unique_ptr<CpuBackend> backend_;
  double fma_peak_ = 0;        // operations per second
  double read_bandwidth_ = 0;  // bytes per second
};

void Bench::Print(const char* name, const std::string& params, const Times& times, double flop,
                  double bytes) {
  std::printf(
      "{\"name\":\"%s\",\"target\":\"%s\",\"threads\":%d%s,\"low_us\":%.2f,\"median_us\":%.2f,"
      "\"spread\":%.3f",
      name, backend_->target(), backend_->num_threads(), params.c_str(), times.low_us,
      times.median_us, times.spread);
  const double flops = flop / times.low_us * 1e6, bandwidth = bytes / times.low_us * 1e6;
  if (flop > 0) std::printf(",\"gflops\":%.1f,\"of_fma\":%.2f", flops / 1e9, flops / fma_peak_);
  if (bytes > 0) {
    std::printf(",\"gb_s\":%.2f,\"of_read\":%.2f", bandwidth / 1e9, bandwidth / read_bandwidth_);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

void Bench::ForkJoin() {
  constexpr int kRuns = 1000;
  ThreadPool pool(backend_->num_threads());
  Times times = Measure([&] {
    for (int i = 0; i < kRuns; ++i) pool.Parallel([](int) {});
  });
  times.low_us /= kRuns;
  times.median_us /= kRuns;
  Print("fork_join", "", times, 0, 0);
}

void Bench::Machine() {
  constexpr size_t kReadBytes = size_t{256} << 20;
  ThreadPool pool(backend_->num_threads());
  fma_peak_ = MeasureFmaPeak(pool, target_);
  read_bandwidth_ = MeasureReadBandwidth(pool, kReadBytes);
  std::printf(
      "{\"name\":\"machine\",\"target\":\"%s\",\"threads\":%d,\"fma_gflops\":%.1f,"
      "\"read_gb_s\":%.2f}\n",
      backend_->target(), backend_->num_threads(), fma_peak_ / 1e9, read_bandwidth_ / 1e9);
}

// A sequence of `depth` cached tokens; its last `rows` are computed, once per layer.
struct Sequence {
  Sequence(int head_dim, int depth, int rows)
      : layout{.num_layers = 1, .num_kv_heads = kNumKvHeads, .head_dim = head_dim},
        blocks((depth + kBlockSize - 1) / kBlockSize) {
    const size_t bytes = layout.block_bytes() * blocks.size();
    layout.num_layers = static_cast<int>(std::clamp<size_t>((size_t{64} << 20) / bytes, 1, 30));
    const size_t total = layout.block_bytes() * blocks.size();
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(64, total)));
    auto* elements = reinterpret_cast<Bf16*>(memory.get());
    for (size_t i = 0; i < total / 2; ++i) {
      elements[i] = ToBf16(static_cast<float>((i * 2654435761u >> 16) & 1023) / 512.0f - 1.0f);
    }
    std::iota(blocks.begin(), blocks.end(), 0);
    q.assign(size_t(rows) * kNumHeads * head_dim, 0.25f);
    out.resize(q.size());
    group = {
        .row_begin = 0, .num_rows = rows, .position = depth - rows, .block_table = blocks.data()};
    pool = {.base = memory.get(), .layout = layout, .num_blocks = int(blocks.size())};
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  KvLayout layout;
  std::vector<BlockId> blocks;
  std::unique_ptr<std::byte, Free> memory;
  std::vector<float> q, out;
  RowGroup group;
  KvPoolView pool;
};

void Bench::Attention(int head_dim, int depth, int rows) {
  Sequence s(head_dim, depth, rows);
  AttentionParams params = {.q = s.q.data(),
                            .out = s.out.data(),
                            .num_heads = kNumHeads,
                            .scale = 0.125f,
                            .pool = s.pool,
                            .groups = {&s.group, 1}};
  const Times times = Measure([&] {
    params.layer = (params.layer + 1) % s.layout.num_layers;
    backend_->Attention(params);
  });
  const double seen = rows * (depth - (rows - 1) / 2.0);
  const double bytes = 2.0 * kNumKvHeads * s.layout.tile_bytes() * s.blocks.size();
  Print("attention",
        ",\"head_dim\":" + std::to_string(head_dim) + ",\"depth\":" + std::to_string(depth) +
            ",\"rows\":" + std::to_string(rows),
        times, 4.0 * kNumHeads * head_dim * seen, bytes);
}

void Bench::KvWrite(int head_dim, int rows) {
  Sequence s(head_dim, rows, rows);
  KvWriteParams params = {
      .k = s.q.data(), .v = s.q.data(), .pool = s.pool, .groups = {&s.group, 1}};
  const Times times = Measure([&] { backend_->KvWrite(params); });
  Print("kv_write",
        ",\"head_dim\":" + std::to_string(head_dim) + ",\"rows\":" + std::to_string(rows), times, 0,
        4.0 * kNumKvHeads * head_dim * rows);
}

void RunAll(Target target, int num_threads) {
  Bench bench(target, num_threads);
  if (!bench.supported()) {
    std::printf("{\"name\":\"skipped\",\"target\":\"%s\"}\n", TargetName(target));
    return;
  }
  bench.ForkJoin();
  bench.Machine();
  for (const int head_dim : {64, 128}) {
    for (const int depth : {2048, 7500}) {
      for (const int rows : {1, 2, 3, 4, 5, 9, 64}) bench.Attention(head_dim, depth, rows);
    }
    bench.Attention(head_dim, 512, 512);
    for (const int rows : {1, 512}) bench.KvWrite(head_dim, rows);
  }
}

}  // namespace
}  // namespace lynx::cpu

int main(int argc, char** argv) {
  using lynx::cpu::Target;
  std::vector<Target> targets = {lynx::cpu::Best(), Target::kAvx2};
  if (argc > 1) {
    targets.clear();
    const std::optional<Target> target = lynx::cpu::FindTarget(argv[1]);
    if (target.has_value()) targets.push_back(*target);
    if (targets.empty()) {
      std::fprintf(stderr, "attention_bench: unknown target %s\n", argv[1]);
      return 1;
    }
  }
  for (const Target target : targets) {
    if (argc <= 2) lynx::cpu::RunAll(target, 1);
    for (int i = 2; i < argc; ++i) lynx::cpu::RunAll(target, std::max(std::atoi(argv[i]), 1));
  }
  return 0;
}
