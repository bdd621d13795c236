// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lynx/types.h"
#include "simt/streams.h"
#include "tests/simt/device_memory.h"

namespace simt = lynx::simt;

struct SimtBlas {};
struct SimtPreference {};
struct SimtProduct {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
};
struct SimtMatrixLayout {
  cudaDataType_t type;
  int64_t rows, columns, ld;
  int32_t batch_count = 1;
  int64_t batch_stride = 0;

  // Of all batches, in elements.
  int64_t extent() const { return (batch_count - 1) * batch_stride + (columns - 1) * ld + rows; }
};

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "invalid value";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "not supported";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new SimtBlas;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t,
                                        cudaDataType_t) {
  *product = new SimtProduct;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t, const void* value,
                                              size_t bytes) {
  if (bytes != sizeof(product->transpose_a)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&product->transpose_a, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *layout =
      new SimtMatrixLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  const bool is_count = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (bytes != (is_count ? sizeof(int32_t) : sizeof(int64_t))) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(is_count ? static_cast<void*>(&layout->batch_count) : &layout->batch_stride, value,
              bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new SimtPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

// There is one algorithm: no workspace, no split of k.
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  const int32_t config = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? 1 : 0;
  if (bytes != sizeof(config)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &config, bytes);
  if (written != nullptr) *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int max_results,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = max_results > 0 ? 1 : 0;
  if (*count > 0) results[0] = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return CUBLAS_STATUS_SUCCESS;
}

namespace {

bool Supported(const SimtProduct& product, const SimtMatrixLayout& a, const SimtMatrixLayout& b,
               const SimtMatrixLayout& d, float alpha, float beta) {
  return product.transpose_a == CUBLAS_OP_T && a.type == CUDA_R_16BF && b.type == CUDA_R_16BF &&
         d.type == CUDA_R_32F && alpha == 1 && beta == 0 && a.rows == b.rows &&
         a.columns == d.rows && b.columns == d.columns && a.batch_count == d.batch_count &&
         b.batch_count == d.batch_count && a.ld >= a.rows && b.ld >= b.rows && d.ld >= d.rows;
}

// The device matrix's bytes, and which of them were ever written.
struct Operand {
  Operand(const void* p, const SimtMatrixLayout& layout, size_t element_bytes)
      : range(simt::ReachRange(p, layout.extent() * element_bytes, "cublasLtMatmul")) {}
  bool Written(int64_t first, int64_t count, size_t element_bytes) const {
    const uint8_t* begin = range.shadow + first * element_bytes;
    return range.shadow == nullptr ||
           std::all_of(begin, begin + count * element_bytes, [](uint8_t w) { return w != 0; });
  }
  simt::HostRange range;
};

// out[i] = sum over k of a[k, i] · x[k], products exact, sums rounded in ascending k. Several
// outputs at a time, each on its own.
void MultiplyColumn(const lynx::Bf16* a, int64_t a_ld, const lynx::Bf16* x, int64_t k, int64_t n,
                    float* out) {
  constexpr int kOutputs = 8;
  for (int64_t i = 0; i < n; i += kOutputs) {
    const int count = static_cast<int>(std::min<int64_t>(kOutputs, n - i));
    float sums[kOutputs] = {};
    for (int64_t kk = 0; kk < k; ++kk) {
      const float x_value = lynx::ToFloat(x[kk]);
      for (int j = 0; j < count; ++j) sums[j] += lynx::ToFloat(a[(i + j) * a_ld + kk]) * x_value;
    }
    std::copy(sums, sums + count, out + i);
  }
}

struct Product {
  const void *a, *b;
  void* d;
  SimtMatrixLayout a_layout, b_layout, d_layout;

  void Run() const;
};

void Product::Run() const {
  const int64_t k = a_layout.rows, n = a_layout.columns;
  const Operand weights(a, a_layout, 2), rows(b, b_layout, 2), out(d, d_layout, 4);
  const auto* w = reinterpret_cast<const lynx::Bf16*>(weights.range.bytes);
  const auto* x = reinterpret_cast<const lynx::Bf16*>(rows.range.bytes);
  auto* y = reinterpret_cast<float*>(out.range.bytes);
  for (int32_t batch = 0; batch < d_layout.batch_count; ++batch) {
    const int64_t w_begin = batch * a_layout.batch_stride;
    const bool weights_written = weights.Written(w_begin, (n - 1) * a_layout.ld + k, 2);
    for (int64_t j = 0; j < d_layout.columns; ++j) {
      const int64_t x_begin = batch * b_layout.batch_stride + j * b_layout.ld;
      const int64_t y_begin = batch * d_layout.batch_stride + j * d_layout.ld;
      // A result is as good as what it was computed from.
      const bool written = weights_written && rows.Written(x_begin, k, 2);
      if (out.range.shadow != nullptr) std::memset(out.range.shadow + 4 * y_begin, written, 4 * n);
      if (written) MultiplyColumn(w + w_begin, a_layout.ld, x + x_begin, k, n, y + y_begin);
    }
  }
}

}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  if (!Supported(*product, *a_layout, *b_layout, *d_layout, *static_cast<const float*>(alpha),
                 *static_cast<const float*>(beta))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const Product work = {a, b, d, *a_layout, *b_layout, *d_layout};
  simt::Enqueue(stream, {.kind = simt::OperationKind::kKernel, .name = "cublasLtMatmul"},
                [work] { work.Run(); });
  return CUBLAS_STATUS_SUCCESS;
}
