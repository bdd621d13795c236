// SPDX-License-Identifier: Apache-2.0
// Weights as the device's matrix products read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "lynx/backend.h"

namespace lynx::cuda {

// Where a quantized matrix lies, as a permutation of the file's bits (Q8_0, Q4_0, Q4_1). Outputs
// are cut into panels of 16, inputs into blocks of 32; both are filled up with zeros.
//
//   codes   [panels][chunks][32 lanes][4 words]. A chunk is 512 bytes, read by a warp at once: one
//           block of Q8_0, two of Q4. In a block, lane 4 g + t holds of outputs g and g + 8 the
//           inputs 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3: the A operand of MmaInt8 (mma.cuh).
//             Q8_0  words (g, first), (g + 8, first), (g, second), (g + 8, second)
//             Q4    words g and g + 8 of the chunk's first block, then of its second; the first
//                   inputs in the low nibbles, the second in the high ones
//   scales  [panels][blocks of all chunks][g = 0 .. 7] binary16 d(g), d(g + 8), and for Q4_1 the
//           minima m(g), m(g + 8)
struct QuantizedLayout {
  QuantizedLayout(WeightType type, int64_t n, int64_t k);

  int64_t panels;
  int64_t blocks;        // of the matrix
  int64_t chunk_blocks;  // of a chunk: 1 or 2
  int64_t chunks;        // of a panel
  int64_t scale_bytes;   // of a block of a panel

  size_t scales_offset() const { return size_t(panels) * chunks * 512; }
  size_t bytes() const {
    return scales_offset() + size_t(panels) * chunks * chunk_blocks * scale_bytes;
  }
};

// BF16 weights are [n][k], row-major, n filled up to a multiple of 16 and k to one of 32 with
// zeros.
inline constexpr int64_t PaddedOutputs(int64_t n) { return (n + 15) / 16 * 16; }
inline constexpr int64_t PaddedInputs(int64_t k) { return (k + 31) / 32 * 32; }

// A matrix in the device's layout, in host memory: BF16 for float files, the file's own precision
// for Q8_0, Q4_0 and Q4_1, Q8_0 for the other block formats, with the CPU's roundings.
struct DeviceMatrix {
  WeightType type = WeightType::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<std::byte> bytes;
};
DeviceMatrix PackForDevice(cpu::ThreadPool& pool, const WeightView& view);

// A DeviceMatrix in device memory, 256-byte aligned.
class DeviceWeight final : public Weight {
 public:
  DeviceWeight(const DeviceMatrix& matrix, Buffer memory) : DeviceWeight(matrix, memory.get()) {
    owned_ = std::move(memory);
  }
  // Memory that outlives the weight.
  DeviceWeight(const DeviceMatrix& matrix, const std::byte* memory)
      : type_(matrix.type),
        n_(matrix.n),
        k_(matrix.k),
        bytes_(matrix.bytes.size()),
        data_(memory) {}

  int64_t n() const override { return n_; }
  int64_t k() const override { return k_; }
  WeightType type() const override { return type_; }
  size_t bytes() const override { return bytes_; }
  const std::byte* data() const { return data_; }

 private:
  WeightType type_;
  int64_t n_, k_;
  size_t bytes_;
  const std::byte* data_;
  Buffer owned_;
};

}  // namespace lynx::cuda
