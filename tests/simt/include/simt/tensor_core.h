// SPDX-License-Identifier: Apache-2.0
// The scalar meaning of kernels/cuda/mma.cuh; the fragments' layout is stated there. BF16 products
// are exact in FP32 and are added in ascending k; a GPU adds them in an order of its own.
#pragma once

#include "lynx/types.h"
#include "simt/device.h"

namespace lynx::cuda {

struct MmaOperands {
  uint32_t a[4];
  uint32_t b[2];
};

// Element e (of elements of kBits bits) of a register.
template <int kBits>
uint32_t FragmentElement(uint32_t reg, int e) {
  return reg >> (kBits * e) & ((1u << kBits) - 1);
}

// Calls multiply_add(c index, a element, b element) in ascending k for each of this lane's four
// outputs. kPerRegister elements lie in a register.
template <int kPerRegister, typename MultiplyAdd>
void ForEachProduct(const simt::LaneValue* lanes, MultiplyAdd multiply_add) {
  constexpr int kBits = 32 / kPerRegister;
  const int g = simt::CurrentLane() / 4, t = simt::CurrentLane() % 4;
  for (int half = 0; half < 2; ++half) {       // of k
    for (int owner = 0; owner < 4; ++owner) {  // the t of the lane that holds these k
      const auto row = simt::LaneAs<MmaOperands>(lanes, 4 * g + owner);
      for (int column = 0; column < 2; ++column) {
        const auto other = simt::LaneAs<MmaOperands>(lanes, 4 * (2 * t + column) + owner);
        for (int e = 0; e < kPerRegister; ++e) {
          const uint32_t b = FragmentElement<kBits>(other.b[half], e);
          multiply_add(column, FragmentElement<kBits>(row.a[2 * half], e), b);
          multiply_add(2 + column, FragmentElement<kBits>(row.a[2 * half + 1], e), b);
        }
      }
    }
  }
}

inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    const simt::Site& site = simt::Site::current()) {
  const MmaOperands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const auto* lanes = simt::ExchangeInWarp("MmaBf16", 0xffffffffu, mine, site);
  ForEachProduct<2>(lanes, [&c](int i, uint32_t x, uint32_t y) {
    c[i] += std::bit_cast<float>(x << 16) * std::bit_cast<float>(y << 16);
  });
}

inline void MmaInt8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    const simt::Site& site = simt::Site::current()) {
  const MmaOperands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const auto* lanes = simt::ExchangeInWarp("MmaInt8", 0xffffffffu, mine, site);
  ForEachProduct<4>(lanes, [&c](int i, uint32_t x, uint32_t y) {
    c[i] += static_cast<int8_t>(x) * static_cast<int8_t>(y);
  });
}

struct MatrixRow {
  uint16_t elements[8];
};

inline MatrixRow ReadMatrixRow(Shared<const Bf16> row, const simt::Site& site) {
  MatrixRow mine;
  simt::SharedSpace::Read<16>(row.object(), reinterpret_cast<uintptr_t>(row.raw()), 16, &mine,
                              site);
  return mine;
}

inline void LoadMatrix4(uint32_t (&r)[4], Shared<const Bf16> row,
                        const simt::Site& site = simt::Site::current()) {
  const auto* lanes =
      simt::ExchangeInWarp("LoadMatrix4", 0xffffffffu, ReadMatrixRow(row, site), site);
  const int g = simt::CurrentLane() / 4, t = simt::CurrentLane() % 4;
  for (int j = 0; j < 4; ++j) {
    const auto source = simt::LaneAs<MatrixRow>(lanes, 8 * j + g);
    r[j] = source.elements[2 * t] | uint32_t{source.elements[2 * t + 1]} << 16;
  }
}

inline void LoadMatrix4Transposed(uint32_t (&r)[4], Shared<const Bf16> row,
                                  const simt::Site& site = simt::Site::current()) {
  const auto* lanes =
      simt::ExchangeInWarp("LoadMatrix4Transposed", 0xffffffffu, ReadMatrixRow(row, site), site);
  const int g = simt::CurrentLane() / 4, t = simt::CurrentLane() % 4;
  for (int j = 0; j < 4; ++j) {
    const auto first = simt::LaneAs<MatrixRow>(lanes, 8 * j + 2 * t);
    const auto second = simt::LaneAs<MatrixRow>(lanes, 8 * j + 2 * t + 1);
    r[j] = first.elements[g] | uint32_t{second.elements[g]} << 16;
  }
}

}  // namespace lynx::cuda
