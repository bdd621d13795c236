// SPDX-License-Identifier: Apache-2.0
// BF16 matrix products by cuBLASLt that do not depend on a row's company.
//
// Rows come in tiles of 64, filled up with zeros. A tile is one product of a batch: [64, k] ·
// [n, k]ᵀ with the weight shared (batch stride 0). Every product of a shape therefore has the same
// size and the same algorithm, chosen once, which may neither split K over blocks (no split-K, no
// reduction, and no workspace for one) nor know how many tiles there are.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "lynx/types.h"

namespace lynx::cuda {

inline constexpr int kBf16TileRows = 64;
inline constexpr int kMaxBf16Tiles = 8;  // of one call

// One thread at a time. Allocates in Plan only.
class Bf16Gemm {
 public:
  Bf16Gemm();
  ~Bf16Gemm();
  Bf16Gemm(const Bf16Gemm&) = delete;
  Bf16Gemm& operator=(const Bf16Gemm&) = delete;

  // Chooses the algorithm for weights [n, k]. At start-up; aborts when cuBLASLt has none.
  void Plan(int64_t n, int64_t k);

  // out = x · wᵀ for a planned shape. Device pointers, 256-byte aligned; n and k stand for the
  // padded ones (weight.h): x [tiles · 64, k], w [n, k], out [tiles · 64, n];
  // tiles <= kMaxBf16Tiles.
  void Run(cudaStream_t stream, const Bf16* x, int tiles, const Bf16* w, int64_t n, int64_t k,
           float* out);

 private:
  struct Shape;
  bool RunsInBatches(Shape& shape, const cublasLtMatmulAlgo_t& algorithm);

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Shape>> shapes_;  // of (n, k)
};

}  // namespace lynx::cuda
