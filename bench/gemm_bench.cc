// SPDX-License-Identifier: Apache-2.0
// gemm_bench [THREADS [TYPE [ROWS]]]: the matrix products of one forward pass of SmolLM2-135M with
// random weights. One JSON object a line; weight bytes per second against the read bandwidth and
// flops against the float32 FMA peak of the same run. The output head is left out above 64 rows, as
// in a prefill.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/machine_probe.h"

namespace lynx::cpu {
namespace {

constexpr int kNumLayers = 30, kHidden = 576, kKv = 192, kIntermediate = 1536, kVocab = 49152;

struct Type {
  const char* name;
  WeightType type;
  Compute compute = Compute::kFast;
};
constexpr Type kTypes[] = {{"BF16", WeightType::kBf16},
                           {"Q8_0", WeightType::kQ8_0},
                           {"Q4_0", WeightType::kQ4_0},
                           {"Q4_1", WeightType::kQ4_1},
                           {"Q4_1_f32", WeightType::kQ4_1, Compute::kF32}};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes of a matrix with finite values of ordinary size.
std::vector<std::byte> RandomBytes(WeightType type, int64_t n, int64_t k, std::mt19937& rng) {
  const BlockShape format = WeightBlock(type);
  std::vector<std::byte> bytes(size_t(n) * k / format.elements * format.bytes);
  uint32_t random = rng();
  for (std::byte& b : bytes) b = std::byte((random = random * 1664525u + 1013904223u) >> 24);
  const uint16_t half = type == WeightType::kBf16 ? 0x3c00 : 0x1c00;  // 2^-7, 2^-8
  for (size_t at = 0; at < bytes.size(); at += format.bytes) {
    const uint16_t scale = half | (std::to_integer<uint16_t>(bytes[at]) & 0x7f);
    std::memcpy(&bytes[at], &scale, 2);
    if (type == WeightType::kQ4_1) std::memcpy(&bytes[at + 2], &scale, 2);
  }
  return bytes;
}

struct Product {
  std::vector<std::unique_ptr<Weight>> weights;  // of one input
  std::vector<std::vector<std::byte>> files;     // what they were made of, read with kF32
  int64_t k;
};

class Bench {
 public:
  Bench(CpuBackend& backend, const Type& type) : backend_(backend), type_(type) {
    std::mt19937 rng(1);
    double pack_seconds = 0;
    const auto add = [&](std::initializer_list<int64_t> outputs, int64_t k) {
      Product product{.k = k};
      for (int64_t n : outputs) {
        const auto& bytes = product.files.emplace_back(RandomBytes(type.type, n, k, rng));
        const double start = Seconds();
        product.weights.push_back(backend.PackWeight({.type = type.type,
                                                      .n = n,
                                                      .k = k,
                                                      .data = bytes.data(),
                                                      .row_bytes = bytes.size() / n}));
        pack_seconds += Seconds() - start;
      }
      products_.push_back(std::move(product));
    };
    for (int i = 0; i < kNumLayers; ++i) {
      add({kHidden, kKv, kKv}, kHidden);
      add({kHidden}, kHidden);
      add({kIntermediate, kIntermediate}, kHidden);
      add({kHidden}, kIntermediate);
    }
    add({kVocab}, kHidden);
    std::printf("{\"name\":\"pack\",\"type\":\"%s\",\"threads\":%d,\"seconds\":%.3f}\n", type.name,
                backend.num_threads(), pack_seconds);
  }

  size_t bytes() const {
    size_t bytes = 0;
    for (const Product& p : products_) bytes += FileBytes(p);
    return bytes;
  }

  void Measure(int rows, double read_bandwidth, double fma_peak) {
    constexpr int kPasses = 7;
    const size_t num_products = rows <= 64 ? products_.size() : products_.size() - 1;
    x_.assign(size_t(rows) * kIntermediate, 0);
    std::mt19937 rng(2);
    for (float& v : x_) v = std::normal_distribution<float>(0, 1)(rng);
    y_.assign(size_t(rows) * (rows <= 64 ? kVocab : 2 * kIntermediate), 0);
    // The best of each product apart: short enough that a busy machine leaves some pass alone.
    double best = 0, macs = 0;
    size_t weight_bytes = 0;
    std::vector<double> passes(kPasses);
    for (size_t i = 0; i < num_products; ++i) {
      for (const auto& w : products_[i].weights) macs += double(rows) * w->n() * w->k();
      weight_bytes += FileBytes(products_[i]);
    }
    std::vector<double> minima(num_products, 1e9);
    for (double& pass : passes) {
      for (size_t i = 0; i < num_products; ++i) {
        const double start = Seconds();
        Run(products_[i], rows);
        const double seconds = Seconds() - start;
        minima[i] = std::min(minima[i], seconds);
        pass += seconds;
      }
    }
    for (double seconds : minima) best += seconds;
    std::sort(passes.begin(), passes.end());
    const double bandwidth = double(weight_bytes) / best, flops = 2 * macs / best;
    std::printf(
        "{\"name\":\"gemm\",\"type\":\"%s\",\"target\":\"%s\",\"threads\":%d,\"rows\":%d,"
        "\"best_ms\":%.3f,\"median_ms\":%.3f,\"gb_per_s\":%.2f,\"of_read\":%.2f,\"gflops\":%.1f,"
        "\"of_fma\":%.2f}\n",
        type_.name, backend_.target(), backend_.num_threads(), rows, best * 1e3,
        passes[kPasses / 2] * 1e3, bandwidth / 1e9, bandwidth / read_bandwidth, flops / 1e9,
        flops / fma_peak);
    std::fflush(stdout);
  }

 private:
  // Packed weights are as large as the file's for all these types.
  static size_t FileBytes(const Product& product) {
    size_t bytes = 0;
    for (const auto& file : product.files) bytes += file.size();
    return bytes;
  }

  void Run(const Product& product, int rows) {
    std::vector<GemmOutput> outputs;
    float* y = y_.data();
    for (const auto& w : product.weights) {
      outputs.push_back({.weight = w.get(), .y = y, .ldy = w->n()});
      y += size_t(rows) * w->n();
    }
    backend_.Gemm(x_.data(), rows, product.k, outputs);
  }

  CpuBackend& backend_;
  Type type_;
  std::vector<Product> products_;
  std::vector<float> x_, y_;
};

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string only_type = argc > 2 ? argv[2] : "";
  const int only_rows = argc > 3 ? std::atoi(argv[3]) : 0;
  for (Target target :
       {Target::kAvx2, Target::kAvx512, Target::kAvx512Vnni, Target::kAvx512Bf16, Target::kAmx}) {
    if (!Supports(target)) continue;
    ThreadPool pool(threads);
    const double fma_peak = MeasureFmaPeak(pool, target);
    for (const Type& type : kTypes) {
      if (!only_type.empty() && only_type != type.name) continue;
      const auto backend =
          CpuBackend::Create({.compute = type.compute, .num_threads = threads, .target = target});
      Bench bench(*backend, type);
      const double read_bandwidth = MeasureReadBandwidth(pool, bench.bytes());
      std::printf(
          "{\"name\":\"machine\",\"target\":\"%s\",\"threads\":%d,\"read_gb_per_s\":%.2f,"
          "\"read_mb\":%.0f,\"fma_gflops\":%.1f}\n",
          backend->target(), threads, read_bandwidth / 1e9, double(bench.bytes()) / 1e6,
          fma_peak / 1e9);
      for (int rows : {1, 2, 4, 8, 16, 64, 512}) {
        if (only_rows == 0 || only_rows == rows) bench.Measure(rows, read_bandwidth, fma_peak);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace lynx::cpu

int main(int argc, char** argv) { return lynx::cpu::Main(argc, argv); }
