// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/bf16_gemm.h"
#include "kernels/cuda/weight.h"

namespace lynx::cuda {
namespace {

void AbortUnless(bool ok, const char* what, cublasStatus_t status) {
  if (ok) return;
  std::fprintf(stderr, "cuBLASLt: %s: %s\n", what, cublasLtGetStatusString(status));
  std::abort();
}
void Check(cublasStatus_t status, const char* what) {
  AbortUnless(status == CUBLAS_STATUS_SUCCESS, what, status);
}

// A column-major matrix in a batch.
class Layout {
 public:
  Layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
    Check(cublasLtMatrixLayoutCreate(&layout_, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    Check(cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                           &stride, sizeof(stride)),
          "batch stride");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  void SetBatch(int32_t count) {
    Check(cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                           sizeof(count)),
          "batch count");
  }
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

template <typename T>
T Config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = 0;
  Check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), nullptr),
        "cublasLtMatmulAlgoConfigGetAttribute");
  return value;
}

// A sum over K stays in one block, in the algorithm's own order.
bool KeepsSumsWhole(const cublasLtMatmulHeuristicResult_t& result) {
  return result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize == 0 &&
         Config<int32_t>(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1 &&
         Config<uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
             CUBLASLT_REDUCTION_SCHEME_NONE;
}

}  // namespace

// In cuBLASLt's column-major words: out [n, 64] = wᵀ · x, w [k, n], x [k, 64]. n and k are padded.
struct Bf16Gemm::Shape {
  Shape(int64_t n, int64_t k)
      : w(CUDA_R_16BF, k, n, 0),
        x(CUDA_R_16BF, k, kBf16TileRows, k * kBf16TileRows),
        out(CUDA_R_32F, n, kBf16TileRows, n * kBf16TileRows) {
    SetTiles(1);
  }
  void SetTiles(int32_t count) {
    for (Layout* layout : {&w, &x, &out}) layout->SetBatch(count);
  }

  Layout w, x, out;
  cublasLtMatmulAlgo_t algorithm = {};
};

Bf16Gemm::Bf16Gemm() {
  Check(cublasLtCreate(&handle_), "cublasLtCreate");
  Check(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  Check(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof(transposed)),
        "transposition");
}

Bf16Gemm::~Bf16Gemm() {
  cublasLtMatmulDescDestroy(product_);
  cublasLtDestroy(handle_);
}

// The heuristic was asked about one tile: the algorithm must take any number of them as it is.
bool Bf16Gemm::RunsInBatches(Shape& shape, const cublasLtMatmulAlgo_t& algorithm) {
  for (const int tiles : {kMaxBf16Tiles, 2, 1}) {
    shape.SetTiles(tiles);
    cublasLtMatmulHeuristicResult_t result = {};
    if (cublasLtMatmulAlgoCheck(handle_, product_, shape.w.get(), shape.x.get(), shape.out.get(),
                                shape.out.get(), &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize != 0) {
      return false;
    }
  }
  return true;
}

void Bf16Gemm::Plan(int64_t n, int64_t k) {
  n = PaddedOutputs(n);
  k = PaddedInputs(k);
  std::unique_ptr<Shape>& shape = shapes_[{n, k}];
  if (shape != nullptr) return;
  shape = std::make_unique<Shape>(n, k);
  cublasLtMatmulPreference_t preference;
  Check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const size_t workspace = 0;
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
  Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof(workspace)),
        "workspace limit");
  Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof(reductions)),
        "reduction schemes");
  constexpr int kMaxResults = 16;
  cublasLtMatmulHeuristicResult_t results[kMaxResults] = {};
  int count = 0;
  Check(cublasLtMatmulAlgoGetHeuristic(handle_, product_, shape->w.get(), shape->x.get(),
                                       shape->out.get(), shape->out.get(), preference, kMaxResults,
                                       results, &count),
        "cublasLtMatmulAlgoGetHeuristic");
  cublasLtMatmulPreferenceDestroy(preference);
  int chosen = 0;
  while (chosen < count &&
         !(KeepsSumsWhole(results[chosen]) && RunsInBatches(*shape, results[chosen].algo))) {
    ++chosen;
  }
  AbortUnless(chosen < count, "no algorithm without split-K", CUBLAS_STATUS_NOT_SUPPORTED);
  shape->algorithm = results[chosen].algo;
}

void Bf16Gemm::Run(cudaStream_t stream, const Bf16* x, int tiles, const Bf16* w, int64_t n,
                   int64_t k, float* out) {
  Shape& shape = *shapes_.at({PaddedOutputs(n), PaddedInputs(k)});
  shape.SetTiles(tiles);
  const float one = 1, zero = 0;
  Check(cublasLtMatmul(handle_, product_, &one, w, shape.w.get(), x, shape.x.get(), &zero, out,
                       shape.out.get(), out, shape.out.get(), &shape.algorithm, nullptr, 0, stream),
        "cublasLtMatmul");
}

}  // namespace lynx::cuda
