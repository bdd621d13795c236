// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/target.h"

#include <cstdio>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>

#include "kernels/cpu/amx_probe.h"
#endif

namespace lynx::cpu {
namespace {

#if defined(__x86_64__)

struct Features {
  bool avx2 = false;
  bool avx512 = false;
  bool vnni = false;
  bool bf16 = false;
  bool amx = false;
};

// The state components that the operating system saves on a context switch.
uint64_t EnabledState() {
  uint32_t eax = 0, edx = 0;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (uint64_t{edx} << 32) | eax;
}

bool HasAll(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// Palette 1 with the shapes of tile_config.h.
bool HasTilePalette() {
  constexpr uint32_t kEax = 1024u << 16 | 8192u;  // bytes of a tile, of all tiles
  constexpr uint32_t kEbx = 8u << 16 | 64u;       // tiles, bytes of a row
  constexpr uint32_t kRows = 16;
  uint32_t eax, ebx, ecx, edx;
  return __get_cpuid_count(0x1d, 1, &eax, &ebx, &ecx, &edx) && eax == kEax && ebx == kEbx &&
         (ecx & 0xffff) == kRows;
}

Features Detect() {
  constexpr uint64_t kYmmState = 0x6;        // XMM, upper halves of YMM
  constexpr uint64_t kZmmState = 0xe6;       // and opmasks, upper halves of ZMM, ZMM16-31
  constexpr uint64_t kTileState = 3u << 17;  // configuration, tiles
  constexpr uint32_t kOsxsave = 1u << 27, kLzcnt = 1u << 5;
  constexpr uint32_t kAvx2Leaf1 = kOsxsave | bit_AVX | bit_FMA | bit_F16C | bit_AES | bit_PCLMUL;
  constexpr uint32_t kAvx2Leaf7 = bit_AVX2 | bit_BMI | bit_BMI2;
  constexpr uint32_t kAvx512Leaf7 = bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW;

  Features features;
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !HasAll(ecx, kAvx2Leaf1)) return features;
  const uint64_t state = EnabledState();
  if ((state & kYmmState) != kYmmState) return features;
  if (!__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) || !HasAll(ecx, kLzcnt)) return features;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
  features.avx2 = HasAll(ebx, kAvx2Leaf7);
  features.avx512 = features.avx2 && HasAll(ebx, kAvx512Leaf7) && (state & kZmmState) == kZmmState;
  features.vnni = features.avx512 && HasAll(ecx, bit_AVX512VNNI);
  features.amx = features.vnni && HasAll(edx, bit_AMX_TILE | bit_AMX_BF16) &&
                 (state & kTileState) == kTileState && HasTilePalette();
  features.bf16 = features.vnni && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) &&
                  HasAll(eax, bit_AVX512BF16);
  return features;
}

const Features& Detected() {
  static const Features features = Detect();
  return features;
}

bool Bf16Works() {
  static const bool works = Detected().bf16 && EqualScalar(kBf16Avx512);
  return works;
}

bool AmxWorks() {
  static const bool works = [] {
    if (!Detected().amx) return false;
    const char* fault = AmxFault();
    if (fault != nullptr) std::fprintf(stderr, "AMX is not used: %s\n", fault);
    return fault == nullptr;
  }();
  return works;
}

#endif

}  // namespace

bool Supports(Target target) {
#if defined(__x86_64__)
  switch (target) {
    case Target::kAvx2:
      return Detected().avx2;
    case Target::kAvx512:
      return Detected().avx512;
    case Target::kAvx512Vnni:
      return Detected().vnni;
    case Target::kAvx512Bf16:
      return Bf16Works();
    case Target::kAmx:
      return AmxWorks();
    default:
      return true;
  }
#else
  return target == Target::kAuto || target == Target::kScalar;
#endif
}

Target Best() {
  for (Target target :
       {Target::kAmx, Target::kAvx512Bf16, Target::kAvx512Vnni, Target::kAvx512, Target::kAvx2}) {
    if (Supports(target)) return target;
  }
  return Target::kScalar;
}

}  // namespace lynx::cpu
