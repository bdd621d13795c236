// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/machine_probe.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/cpu/target.h"

namespace lynx::cpu {
namespace {

constexpr int kPasses = 5;
constexpr int kChains = 12;  // hides the latency of two FMA units of latency 4 and more

template <typename F>
double BestSeconds(F&& run) {
  double best = 1e30;
  for (int i = 0; i < kPasses; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

// Eight independent sums, so that the adds never limit the loads.
__attribute__((target("avx2"))) int64_t SumAvx2(const int64_t* data, size_t n) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (size_t i = 0; i + 32 <= n; i += 32) {
    for (int j = 0; j < 8; ++j) {
      sum[j] = _mm256_add_epi64(
          sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 4 * j)));
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_epi64(sum[0], sum[j]);
  alignas(32) int64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum[0]);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

int64_t SumScalar(const int64_t* data, size_t n) {
  int64_t sum[4] = {0, 0, 0, 0};
  for (size_t i = 0; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] += data[i + j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

__attribute__((target("avx512f"))) float FmaAvx512(int64_t rounds) {
  __m512 c[kChains];
  for (int j = 0; j < kChains; ++j) c[j] = _mm512_set1_ps(1.0f + j);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (int j = 0; j < kChains; ++j) c[j] = _mm512_fmadd_ps(c[j], a, b);
  }
  for (int j = 1; j < kChains; ++j) c[0] = _mm512_add_ps(c[0], c[j]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, c[0]);
  return lanes[0] + lanes[15];
}

__attribute__((target("avx2,fma"))) float FmaAvx2(int64_t rounds) {
  __m256 c[kChains];
  for (int j = 0; j < kChains; ++j) c[j] = _mm256_set1_ps(1.0f + j);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (int j = 0; j < kChains; ++j) c[j] = _mm256_fmadd_ps(c[j], a, b);
  }
  for (int j = 1; j < kChains; ++j) c[0] = _mm256_add_ps(c[0], c[j]);
  return _mm256_cvtss_f32(c[0]);
}

float MulAddScalar(int64_t rounds) {
  float c[kChains];
  for (int j = 0; j < kChains; ++j) c[j] = 1.0f + j;
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& x : c) x = x * 0.999f + 0.001f;
  }
  float sum = 0;
  for (float x : c) sum += x;
  return sum;
}

}  // namespace

double MeasureReadBandwidth(ThreadPool& pool, size_t bytes) {
  const size_t words = std::max<size_t>(bytes / sizeof(int64_t), 1024);
  const std::vector<int64_t> data(words, 1);
  const bool avx2 = Supports(Target::kAvx2);
  std::atomic<int64_t> total = 0;
  const double seconds = BestSeconds([&] {
    pool.Parallel([&](int thread) {
      const size_t begin = words * thread / pool.num_threads();
      const size_t end = words * (thread + 1) / pool.num_threads();
      total += avx2 ? SumAvx2(data.data() + begin, end - begin)
                    : SumScalar(data.data() + begin, end - begin);
    });
  });
  return words * sizeof(int64_t) / seconds;
}

double MeasureFmaPeak(ThreadPool& pool, Target target) {
  constexpr int64_t kRounds = 1'000'000;
  const bool avx512 = target >= Target::kAvx512 && Supports(Target::kAvx512);
  const bool avx2 = target >= Target::kAvx2 && Supports(Target::kAvx2);
  const int lanes = avx512 ? 16 : avx2 ? 8 : 1;
  std::atomic<float> sink = 0;
  const double seconds = BestSeconds([&] {
    pool.Parallel([&](int) {
      sink = avx512 ? FmaAvx512(kRounds) : avx2 ? FmaAvx2(kRounds) : MulAddScalar(kRounds);
    });
  });
  return 2.0 * kRounds * kChains * lanes * pool.num_threads() / seconds;
}

}  // namespace lynx::cpu
