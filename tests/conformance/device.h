// SPDX-License-Identifier: Apache-2.0
// What a conformance test needs of a device, in CUDA's runtime words. One body of tests, built
// twice: against the emulation of tests/simt (always), and against a GPU's runtime, where every
// test is skipped when there is no device.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lynx::cuda {

inline void Require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
    }
    Require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    Sync();
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }
  // Returns when all launched work is done.
  void Sync() { Require(cudaDeviceSynchronize(), "kernels"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// An array in device memory. Fresh memory is uninitialized, and reading it is a fault under the
// emulation.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    if (size > 0) Require(cudaMalloc(&data_, size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Upload(values);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  void Upload(const std::vector<T>& values) {
    if (values.empty()) return;
    Require(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
            "upload");
    // A copy from pageable memory may return early, and stream() does not wait for it.
    Require(cudaDeviceSynchronize(), "upload");
  }
  // After all work that was launched before.
  std::vector<T> Download() const {
    Require(cudaDeviceSynchronize(), "kernels");
    std::vector<T> values(size_);
    if (size_ > 0) {
      Require(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              "download");
    }
    return values;
  }

 private:
  size_t size_ = 0;
  T* data_ = nullptr;
};

}  // namespace lynx::cuda
