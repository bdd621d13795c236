// SPDX-License-Identifier: Apache-2.0
// What cuda_kernel_bench needs to time one launch: arrays in device memory, and a clock on the
// device. Whatever goes wrong ends the program with a line that says what.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/stream.h"
#include "lynx/types.h"

namespace lynx::cuda {

// An array in device memory.
template <typename T>
class Array {
 public:
  // Contents undefined.
  explicit Array(size_t size)
      : size_(size), memory_(AllocateDevice(std::max(size * sizeof(T), size_t{1}))) {
    if (memory_ != nullptr) return;
    std::fprintf(stderr, "no device memory for %zu bytes\n", size * sizeof(T));
    std::exit(1);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    Upload(values.data(), 0, values.size());
  }

  T* data() const { return ArrayAt<T>(memory_.get(), 0); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  void Upload(const T* from, size_t at, size_t count) {
    if (count == 0) return;
    AbortOnError(cudaMemcpy(data() + at, from, count * sizeof(T), cudaMemcpyHostToDevice),
                 "upload");
    AbortOnError(cudaDeviceSynchronize(), "upload");
  }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    AbortOnError(cudaDeviceSynchronize(), "a kernel before a download");
    AbortOnError(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  size_t size_;
  DeviceMemory memory_;
};

// Values of ordinary size, the same few millions over and over.
template <typename T>
Array<T> RandomArray(size_t size) {
  constexpr size_t kDistinct = size_t{1} << 22;
  std::vector<T> values(std::min(size, kDistinct));
  uint32_t random = 12345;
  for (T& value : values) {
    random = random * 1664525u + 1013904223u;
    if constexpr (sizeof(T) == 1) {
      value = T(random >> 24);
    } else {
      const float x = static_cast<float>(static_cast<int32_t>(random)) * 0x1p-31f;
      if constexpr (std::is_same_v<T, Bf16>) {
        value = ToBf16(x);
      } else {
        value = x;
      }
    }
  }
  Array<T> array(size);
  for (size_t at = 0; at < size; at += values.size()) {
    array.Upload(values.data(), at, std::min(values.size(), size - at));
  }
  return array;
}

// What a launch must move and compute, and what it is bound by: memory, tensor cores, latency, bus.
struct Cost {
  double bytes = 0;
  double flops = 0;
  const char* bound = "memory";
};

struct BenchOptions {
  int num_samples = 21;
  size_t copy_bytes = size_t{1} << 30;
  size_t flush_bytes = size_t{256} << 20;  // more than any level-2 cache holds
};

// Prints one JSON object a line: the median of samples of one launch each, every one with cold
// caches, on an idle stream.
class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), flush_(options.flush_bytes) {
    AbortOnError(cudaEventCreate(&begin_), "cudaEventCreate");
    AbortOnError(cudaEventCreate(&end_), "cudaEventCreate");
    MeasureCopy();
  }
  ~Bench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  cudaStream_t stream() const { return stream_.get(); }

  template <typename Launch>
  void Run(const char* kernel, const std::string& shape, const Cost& cost, Launch launch) {
    const double us = MedianMicroseconds(launch);
    const double rate = cost.bytes / us * 1e-3;
    std::printf(
        "{\"kernel\":\"%s\",\"shape\":\"%s\",\"us\":%.2f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.3f,"
        "\"copy_fraction\":%.3f,\"bound\":\"%s\"}\n",
        kernel, shape.c_str(), us, rate, cost.flops / us * 1e-6, rate / copy_rate_, cost.bound);
    std::fflush(stdout);
  }

 private:
  // Bytes read and bytes written, in 1e9 a second.
  void MeasureCopy() {
    const Array<std::byte> from(options_.copy_bytes), to(options_.copy_bytes);
    AbortOnError(cudaMemsetAsync(from.data(), 1, from.bytes(), stream()), "cudaMemsetAsync");
    const double us = MedianMicroseconds(
        [&] { stream_.Copy(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice); });
    copy_rate_ = 2e-3 * static_cast<double>(from.bytes()) / us;
    std::printf("{\"kernel\":\"copy\",\"shape\":\"%zu bytes\",\"us\":%.2f,\"gb_per_s\":%.1f}\n",
                from.bytes(), us, copy_rate_);
    std::fflush(stdout);
  }

  template <typename Launch>
  double MedianMicroseconds(Launch launch) {
    launch();  // loads the kernel
    std::vector<double> samples(options_.num_samples);
    for (double& sample : samples) {
      AbortOnError(cudaMemsetAsync(flush_.data(), 0, flush_.bytes(), stream()), "cudaMemsetAsync");
      AbortOnError(cudaEventRecord(begin_, stream()), "cudaEventRecord");
      launch();
      AbortOnError(cudaEventRecord(end_, stream()), "cudaEventRecord");
      AbortOnError(cudaEventSynchronize(end_), "a kernel");
      float ms = 0;
      AbortOnError(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      sample = ms * 1e3;
    }
    const auto middle = samples.begin() + options_.num_samples / 2;
    std::nth_element(samples.begin(), middle, samples.end());
    return std::max(*middle, 1e-3);
  }

  const BenchOptions options_;
  const Stream stream_;
  const Array<std::byte> flush_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  double copy_rate_ = 1;
};

}  // namespace lynx::cuda
