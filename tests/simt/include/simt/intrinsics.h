// SPDX-License-Identifier: Apache-2.0
// CUDA's device functions by their own names.
#pragma once

#include <bit>
#include <cmath>

#include "simt/pointer.h"
#include "simt/threads.h"

// ---- barriers -----------------------------------------------------------------------------------
using SimtSite = lynx::simt::Site;

inline void __syncthreads(const SimtSite& site = SimtSite::current()) {
  lynx::simt::WaitAtBarrier("__syncthreads", false, site);
}
inline int __syncthreads_or(int predicate, const SimtSite& site = SimtSite::current()) {
  return lynx::simt::WaitAtBarrier("__syncthreads_or", predicate != 0, site).true_count > 0;
}
inline int __syncthreads_and(int predicate, const SimtSite& site = SimtSite::current()) {
  const auto votes = lynx::simt::WaitAtBarrier("__syncthreads_and", predicate != 0, site);
  return votes.true_count == votes.threads;
}
inline int __syncthreads_count(int predicate, const SimtSite& site = SimtSite::current()) {
  return lynx::simt::WaitAtBarrier("__syncthreads_count", predicate != 0, site).true_count;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const SimtSite& site = SimtSite::current()) {
  lynx::simt::OrderWarp(mask, site);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- shuffles and votes -------------------------------------------------------------------------
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              const SimtSite& site = SimtSite::current()) {
  const auto* lanes = lynx::simt::ExchangeInWarp("__shfl_sync", mask, value, site);
  const int self = lynx::simt::CurrentLane();
  return lynx::simt::LaneAs<T>(lanes, (self & ~(width - 1)) | (lane & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  const SimtSite& site = SimtSite::current()) {
  const auto* lanes = lynx::simt::ExchangeInWarp("__shfl_xor_sync", mask, value, site);
  const int self = lynx::simt::CurrentLane(), source = self ^ lane_mask;
  // A source in a later segment than one's own is out of range: one's own value comes back.
  const bool reachable = source < (self & ~(width - 1)) + width;
  return lynx::simt::LaneAs<T>(lanes, reachable ? source : self);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 const SimtSite& site = SimtSite::current()) {
  const auto* lanes = lynx::simt::ExchangeInWarp("__shfl_up_sync", mask, value, site);
  const int self = lynx::simt::CurrentLane(), source = self - static_cast<int>(delta);
  return lynx::simt::LaneAs<T>(lanes, source >= (self & ~(width - 1)) ? source : self);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   const SimtSite& site = SimtSite::current()) {
  const auto* lanes = lynx::simt::ExchangeInWarp("__shfl_down_sync", mask, value, site);
  const int self = lynx::simt::CurrentLane(), source = self + static_cast<int>(delta);
  return lynx::simt::LaneAs<T>(lanes, source < (self & ~(width - 1)) + width ? source : self);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const SimtSite& site = SimtSite::current()) {
  const auto* lanes = lynx::simt::ExchangeInWarp("__ballot_sync", mask, predicate, site);
  unsigned ballot = 0;
  for (int i = 0; i < 32; ++i) {
    ballot |= unsigned{lynx::simt::LaneAs<int>(lanes, i) != 0} << i;
  }
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate, const SimtSite& site = SimtSite::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const SimtSite& site = SimtSite::current()) {
  return __ballot_sync(mask, predicate, site) == 0xffffffffu;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, const SimtSite& site = SimtSite::current()) {
  const auto* lanes = lynx::simt::ExchangeInWarp("__match_any_sync", mask, value, site);
  unsigned equal = 0;
  for (int i = 0; i < 32; ++i) equal |= unsigned{lynx::simt::LaneAs<T>(lanes, i) == value} << i;
  return equal;
}
template <typename T, typename Op>
T SimtReduce(const char* name, unsigned mask, T value, Op op, const SimtSite& site) {
  const auto* lanes = lynx::simt::ExchangeInWarp(name, mask, value, site);
  T result = lynx::simt::LaneAs<T>(lanes, 0);
  for (int i = 1; i < 32; ++i) result = op(result, lynx::simt::LaneAs<T>(lanes, i));
  return result;
}
template <std::integral T>
T __reduce_add_sync(unsigned mask, T value, const SimtSite& site = SimtSite::current()) {
  return SimtReduce(
      "__reduce_add_sync", mask, value, [](T a, T b) { return T(a + b); }, site);
}
template <std::integral T>
T __reduce_max_sync(unsigned mask, T value, const SimtSite& site = SimtSite::current()) {
  return SimtReduce(
      "__reduce_max_sync", mask, value, [](T a, T b) { return a > b ? a : b; }, site);
}
template <std::integral T>
T __reduce_min_sync(unsigned mask, T value, const SimtSite& site = SimtSite::current()) {
  return SimtReduce(
      "__reduce_min_sync", mask, value, [](T a, T b) { return a < b ? a : b; }, site);
}

// ---- atomics ------------------------------------------------------------------------------------
template <typename T, typename Space, typename Op>
T SimtAtomic(const lynx::simt::Pointer<T, Space>& p, Op op, const SimtSite& site) {
  std::byte* at =
      Space::template Modify<sizeof(T)>(p.object(), reinterpret_cast<uintptr_t>(p.raw()), site);
  T old;
  std::memcpy(&old, at, sizeof(T));
  const T changed = op(old);
  std::memcpy(at, &changed, sizeof(T));
  return old;
}
#define LYNX_SIMT_ATOMIC(name, expression)                                  \
  template <typename T, typename Space>                                     \
  T name(const lynx::simt::Pointer<T, Space>& p, std::type_identity_t<T> v, \
         const SimtSite& site = SimtSite::current()) {                      \
    return SimtAtomic(                                                      \
        p, [v](T old) { return static_cast<T>(expression); }, site);        \
  }
LYNX_SIMT_ATOMIC(atomicAdd, old + v)
LYNX_SIMT_ATOMIC(atomicSub, old - v)
LYNX_SIMT_ATOMIC(atomicMax, old > v ? old : v)
LYNX_SIMT_ATOMIC(atomicMin, old < v ? old : v)
LYNX_SIMT_ATOMIC(atomicOr, old | v)
LYNX_SIMT_ATOMIC(atomicAnd, old& v)
LYNX_SIMT_ATOMIC(atomicXor, old ^ v)
LYNX_SIMT_ATOMIC(atomicExch, ((void)old, v))
#undef LYNX_SIMT_ATOMIC
template <typename T, typename Space>
T atomicCAS(const lynx::simt::Pointer<T, Space>& p, std::type_identity_t<T> expected,
            std::type_identity_t<T> desired, const SimtSite& site = SimtSite::current()) {
  return SimtAtomic(
      p, [=](T old) { return old == expected ? desired : old; }, site);
}

// ---- arithmetic ---------------------------------------------------------------------------------
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline int __float2int_rn(float v) { return static_cast<int>(std::nearbyint(v)); }
inline int __float2int_rd(float v) { return static_cast<int>(std::floor(v)); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __popcll(unsigned long long v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return std::countl_zero(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(static_cast<unsigned>(v)) + 1; }
inline int __ffsll(long long v) {
  return v == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(v)) + 1;
}
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((uint64_t{hi} << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((uint64_t{hi} << 32 | lo) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (s & 7))) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;  // the sign, spread
    r |= byte << (8 * i);
  }
  return r;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  }
  return c;
}
template <typename T>
T __ldg(const lynx::simt::Pointer<const T, lynx::simt::GlobalSpace>& p) {
  return p[0];
}
