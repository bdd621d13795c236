// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/target.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_backend.h"

namespace lynx::cpu {
namespace {

constexpr Target kAll[] = {Target::kAuto,       Target::kScalar,     Target::kAvx2, Target::kAvx512,
                           Target::kAvx512Vnni, Target::kAvx512Bf16, Target::kAmx};

TEST(Target, IsFoundByItsName) {
  for (Target target : kAll) EXPECT_EQ(FindTarget(TargetName(target)), target);
  EXPECT_STREQ(TargetName(Target::kAvx512Vnni), "avx512vnni");
  EXPECT_EQ(FindTarget("avx3"), std::nullopt);
  EXPECT_EQ(FindTarget(""), std::nullopt);
}

TEST(Target, ScalarIsAlwaysSupportedAndTheBestIsOneOfThem) {
  EXPECT_TRUE(Supports(Target::kScalar));
  EXPECT_TRUE(Supports(Best()));
  EXPECT_NE(Best(), Target::kAuto);
}

TEST(Target, ABetterOneImpliesTheOthers) {
  EXPECT_TRUE(!Supports(Target::kAmx) || Supports(Target::kAvx512Vnni));
  EXPECT_TRUE(!Supports(Target::kAvx512Bf16) || Supports(Target::kAvx512Vnni));
  EXPECT_TRUE(!Supports(Target::kAvx512Vnni) || Supports(Target::kAvx512));
  EXPECT_TRUE(!Supports(Target::kAvx512) || Supports(Target::kAvx2));
}

#if defined(__x86_64__)
TEST(Target, AgreesWithTheCompilersRuntime) {
  EXPECT_EQ(Supports(Target::kAvx2),
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(Supports(Target::kAvx512),
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
  EXPECT_EQ(Supports(Target::kAvx512Vnni),
            Supports(Target::kAvx512) && __builtin_cpu_supports("avx512vnni"));
  // Other products than the scalar kernel's are not used.
  EXPECT_TRUE(!Supports(Target::kAvx512Bf16) || __builtin_cpu_supports("avx512bf16"));
  // Linux may refuse.
  EXPECT_TRUE(!Supports(Target::kAmx) ||
              (__builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16")));
}
#endif

TEST(CpuBackend, ResolvesItsTargetOrIsRefused) {
  for (Target target : kAll) {
    const auto backend = CpuBackend::Create({.num_threads = 2, .target = target});
    ASSERT_EQ(backend != nullptr, Supports(target)) << TargetName(target);
    if (backend == nullptr) continue;
    EXPECT_STREQ(backend->target(), TargetName(target == Target::kAuto ? Best() : target));
    EXPECT_STREQ(backend->name(), "cpu");
    EXPECT_EQ(backend->num_threads(), 2);
    EXPECT_EQ(backend->compute(), Compute::kFast);
  }
  EXPECT_EQ(CpuBackend::Create({.num_threads = 0}), nullptr);
}

}  // namespace
}  // namespace lynx::cpu
