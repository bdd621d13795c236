// SPDX-License-Identifier: Apache-2.0
// Device functions against their definitions, and the tensor core's fragments against plain
// matrices.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "tests/conformance/device.h"

namespace lynx::cuda {
namespace {

class IntrinsicsTest : public DeviceTest {};

TEST_F(IntrinsicsTest, BitsAndBytes) {
  EXPECT_EQ(__popc(0xf0u), 4);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(0x80), 8);
  EXPECT_EQ(__brev(1u), 0x80000000u);
  EXPECT_EQ(__umulhi(0x80000000u, 6u), 3u);
  EXPECT_EQ(__funnelshift_l(0x80000001u, 0x12345678u, 4), 0x23456788u);
  EXPECT_EQ(__funnelshift_r(0x80000001u, 0x12345678u, 4), 0x88000000u);
  EXPECT_EQ(__funnelshift_r(5u, 7u, 0), 5u);
  EXPECT_EQ(__funnelshift_l(5u, 7u, 0), 7u);
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7140u), 0x77114400u);
  EXPECT_EQ(__byte_perm(0x000000ffu, 0u, 0x1118u), 0x000000ffu) << "the sign of byte 0, spread";
  EXPECT_EQ(__dp4a(0x01ff02fe, 0x01010303, 10), 10 + 1 - 1 + 6 - 6);
  EXPECT_EQ(__float2int_rn(2.5f), 2);
}

// One warp reads its inputs as fragments and writes the product.
struct MmaArgs {
  Global<const Bf16> a;    // [16, 16]
  Global<const Bf16> b;    // [16, 8]
  Global<const int8_t> p;  // [16, 32]
  Global<const int8_t> q;  // [32, 8]
  Global<float> c;         // [16, 8]
  Global<int> d;           // [16, 8]
};

void MmaKernel(MmaArgs args) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  uint32_t a[4], b[2], p[4] = {}, q[2] = {};
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i % 2);
    const int k = 2 * t + 8 * (i / 2);
    a[i] = PackBf16(args.a[16 * row + k], args.a[16 * row + k + 1]);
    for (int e = 0; e < 4; ++e) {
      const int8_t v = args.p[32 * row + 4 * t + 16 * (i / 2) + e];
      p[i] |= uint32_t{static_cast<uint8_t>(v)} << (8 * e);
    }
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = PackBf16(args.b[8 * (2 * t + 8 * i) + g], args.b[8 * (2 * t + 8 * i + 1) + g]);
    for (int e = 0; e < 4; ++e) {
      const int8_t v = args.q[8 * (4 * t + 16 * i + e) + g];
      q[i] |= uint32_t{static_cast<uint8_t>(v)} << (8 * e);
    }
  }
  float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  int32_t d[4] = {-7, -7, -7, -7};
  MmaBf16(c, a, b);
  MmaInt8(d, p, q);
  for (int i = 0; i < 4; ++i) {
    args.c[8 * (g + 8 * (i / 2)) + 2 * t + i % 2] = c[i];
    args.d[8 * (g + 8 * (i / 2)) + 2 * t + i % 2] = d[i];
  }
}

TEST_F(IntrinsicsTest, TensorCoreProductsAreMatrixProducts) {
  std::mt19937 random(1);
  std::vector<Bf16> a(16 * 16), b(16 * 8);
  std::vector<int8_t> p(16 * 32), q(32 * 8);
  for (auto* m : {&a, &b}) {
    for (Bf16& v : *m) v = ToBf16(static_cast<float>(random()) / 1e9f - 2.0f);
  }
  for (auto* m : {&p, &q}) {
    for (int8_t& v : *m) v = static_cast<int8_t>(random());
  }
  std::vector<float> c(16 * 8, 1.0f);
  std::vector<int> d(16 * 8, -7);
  for (int r = 0; r < 16; ++r) {
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < 16; ++k) {
        c[8 * r + n] = std::fma(ToFloat(a[16 * r + k]), ToFloat(b[8 * k + n]), c[8 * r + n]);
      }
      for (int k = 0; k < 32; ++k) d[8 * r + n] += p[32 * r + k] * q[8 * k + n];
    }
  }
  DeviceArray<Bf16> da(a), db(b);
  DeviceArray<int8_t> dp(p), dq(q);
  DeviceArray<float> dc(16 * 8);
  DeviceArray<int> dd(16 * 8);
  Launch({.block = dim3(32)}, MmaKernel,
         MmaArgs{.a = da.data(),
                 .b = db.data(),
                 .p = dp.data(),
                 .q = dq.data(),
                 .c = dc.data(),
                 .d = dd.data()},
         "MmaKernel");
  EXPECT_EQ(dc.Download(), c);
  EXPECT_EQ(dd.Download(), d);
}

struct LoadArgs {
  Global<uint32_t> plain;       // [4, 32]
  Global<uint32_t> transposed;  // [4, 32]
};

// Element (row, column) of matrix m is 64 m + 8 row + column; rows of 16 elements.
void LoadMatrixKernel(LoadArgs args) {
  LYNX_SHARED(Bf16, s, 32 * 16);
  const int lane = static_cast<int>(threadIdx.x);
  for (int column = 0; column < 8; ++column) {
    s[16 * lane + column] = Bf16{static_cast<uint16_t>(8 * lane + column)};
  }
  __syncwarp();
  uint32_t r[4];
  LoadMatrix4(r, s + 16 * lane);
  for (int j = 0; j < 4; ++j) args.plain[32 * j + lane] = r[j];
  LoadMatrix4Transposed(r, s + 16 * lane);
  for (int j = 0; j < 4; ++j) args.transposed[32 * j + lane] = r[j];
}

TEST_F(IntrinsicsTest, MatrixLoadsSpreadElementsOverLanes) {
  DeviceArray<uint32_t> plain(128), transposed(128);
  Launch({.block = dim3(32)}, LoadMatrixKernel,
         LoadArgs{.plain = plain.data(), .transposed = transposed.data()}, "LoadMatrixKernel");
  const auto got = plain.Download(), got_transposed = transposed.Download();
  for (uint32_t j = 0; j < 4; ++j) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t g = lane / 4, t = lane % 4;
      const uint32_t first = 64 * j + 8 * g + 2 * t;
      EXPECT_EQ(got[32 * j + lane], first | (first + 1) << 16);
      const uint32_t above = 64 * j + 8 * (2 * t) + g;
      EXPECT_EQ(got_transposed[32 * j + lane], above | (above + 8) << 16);
    }
  }
}

}  // namespace
}  // namespace lynx::cuda
