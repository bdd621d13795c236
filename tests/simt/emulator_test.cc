// SPDX-License-Identifier: Apache-2.0
// The emulated device itself: each check catches the smallest kernel that breaks its rule, and
// lets pass the same kernel put right.
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "tests/conformance/device.h"
#include "tests/simt/fault_of.h"

namespace lynx::cuda {
namespace {

using simt::FaultOf;
using simt::kNoFault;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Args {
  Global<float> a;
  Global<float> b;
  int n = 0;
};
using Kernel = void (*)(Args);

template <typename T>
void Use(T) {}

// What is reported of the launch to whoever waits for it.
std::string ReportOf(Kernel kernel, const Args& args = {},
                     LaunchShape shape = {.block = dim3(64)}) {
  return FaultOf([&] {
    Launch(shape, kernel, args, "Kernel");
    cudaDeviceSynchronize();
  });
}

class EmulatorTest : public DeviceTest {
 protected:
  EmulatorTest() : filled_(std::vector<float>(64, 1.0f)), fresh_(64) {}
  Args args() const { return {.a = filled_.data(), .b = fresh_.data(), .n = 64}; }

  DeviceArray<float> filled_, fresh_;  // 64 each
};

// ---- global memory ------------------------------------------------------------------------------
TEST_F(EmulatorTest, AReportNamesKernelBlockThreadLineArrayAndIndex) {
  const std::string report = ReportOf(
      [](Args args) {
        if (blockIdx.x == 2 && threadIdx.x == 5) args.a[64] = 1.0f;
      },
      args(), {.grid = dim3(3), .block = dim3(64)});
  EXPECT_THAT(report, StartsWith("Kernel block (2,0,0) thread (5,0,0): "));
  EXPECT_THAT(report, HasSubstr("emulator_test.cc:"));
  EXPECT_THAT(report,
              HasSubstr("out of bounds: write of 4 bytes at byte 256 (element 64) of global"));
  EXPECT_THAT(report, HasSubstr("of 256 bytes"));
  EXPECT_EQ(report.find('\n'), std::string::npos);
}

TEST_F(EmulatorTest, GlobalBounds) {
  EXPECT_THAT(ReportOf([](Args args) { args.b[0] = args.a[args.n]; }, args()),
              HasSubstr("out of bounds: read"));
  EXPECT_THAT(ReportOf([](Args args) { (args.a - 1)[0] = 1.0f; }, args()),
              HasSubstr("out of bounds: write"));
  // A neighbouring allocation is another array, however far the pointer goes.
  EXPECT_THAT(ReportOf([](Args args) { (args.a + (args.b - args.a))[0] = 1.0f; }, args()),
              HasSubstr("out of bounds: write"));
  EXPECT_THAT(ReportOf([](Args args) { Use<float4>(Cast<float4>(args.a)[16]); }, args()),
              HasSubstr("out of bounds: read of 16 bytes"));
  EXPECT_EQ(ReportOf([](Args args) { args.b[threadIdx.x] = args.a[threadIdx.x]; }, args()),
            kNoFault);
}

TEST_F(EmulatorTest, Misalignment) {
  EXPECT_THAT(ReportOf([](Args args) { Use<float4>(Cast<float4>(args.a + 1)[0]); }, args()),
              HasSubstr("misaligned: read of 16 bytes at byte 4"));
  EXPECT_THAT(ReportOf([](Args) {
                LYNX_SHARED(float, s, 64);
                Cast<float2>(s + 1)[0] = make_float2(1, 2);
              }),
              HasSubstr("misaligned: write of 8 bytes"));
  // cudaMalloc promises 256 bytes, and no more.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(filled_.data()) % 512, 256u);
}

TEST_F(EmulatorTest, PointersToNowhere) {
  EXPECT_THAT(ReportOf([](Args args) { args.a[0] = 1.0f; }),
              HasSubstr("write of 4 bytes through a null"));
  float on_host = 0;
  EXPECT_THAT(ReportOf([](Args args) { args.a[0] = 1.0f; }, {.a = &on_host}),
              HasSubstr("a pointer that is not device memory"));
  Args stale;
  {
    DeviceArray<float> freed(64);
    stale.a = freed.data();
  }
  EXPECT_THAT(ReportOf([](Args args) { args.a[0] = 1.0f; }, stale),
              HasSubstr("use after free: write"));
}

TEST_F(EmulatorTest, UninitializedGlobalMemory) {
  EXPECT_THAT(ReportOf([](Args args) { args.a[0] = args.b[3]; }, args()),
              HasSubstr("uninitialized: read of 4 bytes at byte 12"));
  EXPECT_EQ(ReportOf(
                [](Args args) {
                  args.b[3] = 1.0f;
                  args.a[0] = args.b[3];
                },
                args()),
            kNoFault);
  // A copy between arrays of the device is as good as its source.
  DeviceArray<float> copy(64);
  cudaMemcpy(copy.data(), fresh_.data(), 256, cudaMemcpyDeviceToDevice);
  const Args of_copy = {.a = copy.data()};
  EXPECT_THAT(ReportOf([](Args args) { Use<float>(args.a[4]); }, of_copy),
              HasSubstr("uninitialized"));
  cudaMemset(copy.data(), 0, 256);
  EXPECT_EQ(ReportOf([](Args args) { Use<float>(args.a[4]); }, of_copy), kNoFault);
}

TEST_F(EmulatorTest, HostCodeStaysOutOfDeviceMemory) {
  const Global<float> a(filled_.data());
  EXPECT_THROW(a[0] = 1.0f, simt::Fault);
  EXPECT_DEATH(*filled_.data() = 1.0f, "");
}

// ---- the runtime --------------------------------------------------------------------------------

TEST_F(EmulatorTest, CopiesAreChecked) {
  std::vector<float> host(65);
  EXPECT_EQ(FaultOf([&] { cudaMemcpy(host.data(), filled_.data(), 260, cudaMemcpyDeviceToHost); }),
            "cudaMemcpy: bytes 0..260 of allocation #" +
                std::to_string(simt::FindAllocation(filled_.data())->id) + ", which has 256");
  EXPECT_THAT(FaultOf([&] { cudaMemset(filled_.data() + 63, 0, 8); }), HasSubstr("252..260"));
  EXPECT_THAT(
      FaultOf([&] { cudaMemcpy(host.data(), filled_.data(), 256, cudaMemcpyHostToDevice); }),
      HasSubstr("not of the kind that is named"));
  EXPECT_THAT(FaultOf([&] { cudaFree(filled_.data() + 1); }), HasSubstr("no live allocation"));
  float* freed = nullptr;
  cudaMalloc(&freed, 4);
  cudaFree(freed);
  EXPECT_THAT(FaultOf([&] { cudaFree(freed); }), HasSubstr("no live allocation"));
  EXPECT_THAT(FaultOf([&] { cudaMemset(freed, 0, 4); }), HasSubstr("which was freed"));
}

TEST_F(EmulatorTest, MemoryIsLimited) {
  size_t free, total;
  cudaMemGetInfo(&free, &total);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, free + 1), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&p, free), cudaSuccess);
  cudaFree(p);
}

TEST_F(EmulatorTest, KernelsReachPinnedMemory) {
  float* pinned = nullptr;
  cudaHostAlloc(&pinned, 256, cudaHostAllocMapped);
  pinned[1] = 3.0f;
  EXPECT_EQ(
      ReportOf([](Args args) { args.a[0] = args.a[1] + 1.0f; }, {.a = pinned}, {.block = dim3(1)}),
      kNoFault);
  EXPECT_EQ(pinned[0], 4.0f);
  EXPECT_THAT(ReportOf([](Args args) { args.a[64] = 1.0f; }, {.a = pinned}),
              HasSubstr("out of bounds"));
  cudaFreeHost(pinned);
}

TEST_F(EmulatorTest, ShapesThatNoGpuTakes) {
  const Kernel nothing = [](Args) {};
  EXPECT_THAT(ReportOf(nothing, {}, {.grid = dim3(0), .block = dim3(32)}), HasSubstr("invalid"));
  EXPECT_THAT(ReportOf(nothing, {}, {.block = dim3(1025)}), HasSubstr("invalid configuration"));
  EXPECT_THAT(ReportOf(nothing, {}, {.grid = dim3(1, 65536), .block = dim3(32)}),
              HasSubstr("invalid"));
  EXPECT_THAT(ReportOf(nothing, {}, {.block = dim3(32), .shared_bytes = 228 << 10}),
              HasSubstr("invalid configuration"));
  EXPECT_THAT(ReportOf([](Args) {
                LYNX_SHARED(float, s, 13000);
                Use(s);
              }),
              HasSubstr("no room for 52000 bytes"));
}

// ---- shared memory ------------------------------------------------------------------------------
TEST_F(EmulatorTest, SharedBounds) {
  EXPECT_THAT(ReportOf([](Args) {
                LYNX_SHARED(float, first, 64);
                LYNX_SHARED(float, second, 64);
                Use(second);
                first[threadIdx.x + 1] = 1.0f;
              }),
              HasSubstr("out of bounds: write of 4 bytes at byte 256 (element 64) of shared array "
                        "first of 256 bytes"));
  EXPECT_THAT(ReportOf(
                  [](Args) {
                    LYNX_DYNAMIC_SHARED(s);
                    Cast<float>(s)[threadIdx.x] = 1.0f;
                  },
                  {}, {.block = dim3(64), .shared_bytes = 252}),
              HasSubstr("shared array dynamic of 252 bytes"));
}

TEST_F(EmulatorTest, UninitializedSharedMemory) {
  const Kernel kernel = [](Args args) {
    LYNX_SHARED(float, s, 64);
    if (blockIdx.x == 0 || args.n == 0) s[threadIdx.x] = 1.0f;
    __syncthreads();
    Use<float>(s[63 - threadIdx.x]);
  };
  // What another block left there does not count.
  EXPECT_THAT(ReportOf(kernel, {.n = 1}, {.grid = dim3(2), .block = dim3(64)}),
              AllOf(StartsWith("Kernel block (1,0,0)"),
                    HasSubstr("of shared array s, which no thread of the block has written")));
  EXPECT_EQ(ReportOf(kernel, {.n = 0}, {.grid = dim3(2), .block = dim3(64)}), kNoFault);
}

TEST_F(EmulatorTest, RacesBetweenBarriers) {
  const Kernel read_after_write = [](Args args) {
    LYNX_SHARED(float, s, 64);
    s[threadIdx.x] = 1.0f;
    if (args.n == 0) __syncthreads();
    Use<float>(s[63 - threadIdx.x]);
  };
  EXPECT_THAT(ReportOf(read_after_write, {.n = 1}, {.block = dim3(64)}),
              HasSubstr("which no thread"));
  EXPECT_EQ(ReportOf(read_after_write), kNoFault);

  const Kernel read_of_a_neighbour = [](Args args) {
    LYNX_SHARED(float, s, 64);
    s[threadIdx.x] = 1.0f;
    if (args.n == 0) __syncthreads();
    Use<float>(s[threadIdx.x / 2]);
  };
  EXPECT_THAT(ReportOf(read_of_a_neighbour, {.n = 1}),
              HasSubstr("race: read of byte 0 of shared array s, which thread 0 wrote since the "
                        "last barrier"));
  EXPECT_EQ(ReportOf(read_of_a_neighbour), kNoFault);

  const Kernel write_after_read = [](Args args) {
    LYNX_SHARED(float, s, 64);
    s[threadIdx.x] = 1.0f;
    __syncthreads();
    const float v = s[(threadIdx.x + 1) % 64];
    if (args.n == 0) __syncthreads();
    s[threadIdx.x] = v;
  };
  EXPECT_THAT(ReportOf(write_after_read, {.n = 1}),
              AllOf(HasSubstr("race: write of byte"), HasSubstr("read since the last barrier")));
  EXPECT_EQ(ReportOf(write_after_read), kNoFault);

  EXPECT_THAT(ReportOf([](Args) {
                LYNX_SHARED(float, s, 64);
                s[threadIdx.x % 63] = 1.0f;
              }),
              HasSubstr("race: write of byte 0 of shared array s, which thread 0 wrote"));
  // Byte by byte: neighbours may write the halves of a word.
  EXPECT_EQ(ReportOf([](Args) {
              LYNX_SHARED(uint16_t, s, 64);
              s[threadIdx.x] = static_cast<uint16_t>(threadIdx.x);
            }),
            kNoFault);
}

TEST_F(EmulatorTest, SyncwarpOrdersOneWarpOnly) {
  const Kernel within = [](Args args) {
    LYNX_SHARED(float, s, 64);
    s[threadIdx.x] = 1.0f;
    if (args.n == 0) __syncwarp();
    const float v = s[threadIdx.x / 32 * 32];
    if (args.n < 2) __syncwarp();
    s[threadIdx.x] = v;
  };
  EXPECT_EQ(ReportOf(within), kNoFault);
  EXPECT_THAT(ReportOf(within, {.n = 1}), HasSubstr("race: read of byte 0"));
  EXPECT_THAT(ReportOf([](Args) {
                LYNX_SHARED(float, s, 64);
                s[threadIdx.x] = 1.0f;
                __syncwarp();
                Use<float>(s[threadIdx.x % 32]);
              }),
              HasSubstr("race: read of byte"));
}

TEST_F(EmulatorTest, ReadersOfSeveralWarpsAreRemembered) {
  EXPECT_THAT(ReportOf([](Args) {
                LYNX_SHARED(float, s, 1);
                if (threadIdx.x == 0) s[0] = 1.0f;
                __syncthreads();
                const float v = s[0];
                __syncwarp();
                if (threadIdx.x == 0) s[0] = v;
              }),
              HasSubstr("race: write of byte 0 of shared array s, which threads of several warps"));
}

TEST_F(EmulatorTest, AtomicsDoNotRaceWithEachOther) {
  const Kernel kernel = [](Args args) {
    LYNX_SHARED(int, count, 1);
    if (threadIdx.x == 0) count[0] = 0;
    if (args.n != 1) __syncthreads();
    atomicAdd(count, 2);
    if (args.n != 2) __syncthreads();
    if (threadIdx.x == 0 && args.a) args.a[0] = static_cast<float>(count[0]);
  };
  EXPECT_EQ(ReportOf(kernel, args()), kNoFault);
  EXPECT_EQ(filled_.Download()[0], 128.0f);
  EXPECT_THAT(ReportOf(kernel, {.n = 1}), HasSubstr("race: write"));
  Args no_second = args();
  no_second.n = 2;
  EXPECT_THAT(ReportOf(kernel, no_second), HasSubstr("which atomics of threads of several warps"));
  EXPECT_EQ(ReportOf(kernel, no_second, {.block = dim3(1)}), kNoFault) << "one thread cannot race";
}

TEST_F(EmulatorTest, SyncwarpOrdersAtomicsOfOneWarp) {
  const Kernel kernel = [](Args args) {
    LYNX_SHARED(int, count, 1);
    if (threadIdx.x == 0) count[0] = 0;
    __syncwarp();
    atomicAdd(count, 1);
    if (args.n == 0) __syncwarp();
    Use<int>(count[0]);
  };
  EXPECT_EQ(ReportOf(kernel, {}, {.block = dim3(32)}), kNoFault);
  EXPECT_THAT(ReportOf(kernel, {.n = 1}, {.block = dim3(32)}), HasSubstr("race: "));
}

// ---- barriers and warps -------------------------------------------------------------------------
TEST_F(EmulatorTest, BarrierDivergence) {
  EXPECT_THAT(ReportOf([](Args) {
                if (threadIdx.x == 63) return;
                __syncthreads();
              }),
              HasSubstr("divergence: the thread ends while 63 threads wait at __syncthreads"));
  EXPECT_THAT(ReportOf([](Args) {
                if (threadIdx.x == 0) return;
                __syncthreads();
              }),
              HasSubstr("divergence: __syncthreads without 1 threads that have ended"));
  const Kernel two_places = [](Args) {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  EXPECT_THAT(ReportOf(two_places),
              HasSubstr("divergence: __syncthreads while others wait at __syncthreads"));
  EXPECT_THAT(ReportOf([](Args) {
                if (threadIdx.x == 7) {
                  __syncthreads();
                } else {
                  __syncwarp();
                }
              }),
              HasSubstr("divergence: __syncthreads while lanes of the warp wait in __syncwarp"));
}

TEST_F(EmulatorTest, WarpInstructionsNeedAllLanesAtOnePlace) {
  EXPECT_THAT(ReportOf([](Args) {
                if (threadIdx.x != 40) __shfl_sync(kFullMask, 1, 0);
              }),
              HasSubstr("divergence: the thread ends while lanes of its warp wait in __shfl_sync"));
  EXPECT_THAT(ReportOf([](Args) {
                if (threadIdx.x != 0) __ballot_sync(kFullMask, 1);
              }),
              HasSubstr("divergence: __ballot_sync without lanes that have ended"));
  const Kernel two_places = [](Args) {
    if (threadIdx.x % 2 == 0) {
      __shfl_xor_sync(kFullMask, 1, 1);
    } else {
      __shfl_xor_sync(kFullMask, 2, 1);
    }
  };
  EXPECT_THAT(ReportOf(two_places),
              HasSubstr("divergence: __shfl_xor_sync while lanes of the warp wait in __shfl_xor"));
  EXPECT_THAT(ReportOf([](Args) { __shfl_sync(0xffffu, 1, 0); }),
              HasSubstr("the mask is not full"));
  EXPECT_THAT(ReportOf([](Args) { __syncwarp(); }, {}, {.block = dim3(40)}),
              HasSubstr("divergence: __syncwarp without lanes"));
}

TEST_F(EmulatorTest, AFaultUnwindsTheBlockAndTheNextLaunchIsClean) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(ReportOf(
                  [](Args args) {
                    LYNX_SHARED(float, s, 64);
                    s[threadIdx.x] = 1.0f;
                    if (threadIdx.x == 50) args.a[64] = 1.0f;
                    __syncthreads();
                  },
                  args()),
              kNoFault);
    EXPECT_EQ(ReportOf(
                  [](Args args) {
                    LYNX_SHARED(float, s, 64);
                    s[threadIdx.x] = args.a[threadIdx.x];
                    __syncthreads();
                    args.b[threadIdx.x] = s[63 - threadIdx.x];
                  },
                  args()),
              kNoFault);
  }
}

// ---- asynchronous copies ------------------------------------------------------------------------
constexpr int kWait = 1, kCommit = 2, kBarrier = 4;

std::string RunCopy(Args args, int steps) {
  args.n = steps;
  return ReportOf(
      [](Args args) {
        LYNX_SHARED(float, s, 64);
        if (threadIdx.x < 16) {
          CopyAsync16(Cast<std::byte>(s + 4 * threadIdx.x),
                      Cast<std::byte>(args.a + 4 * threadIdx.x));
        }
        if (args.n & kCommit) CopyCommit();
        if (args.n & kWait) CopyWait<0>();
        if (args.n & kBarrier) __syncthreads();
        args.b[threadIdx.x] = s[threadIdx.x];
      },
      args);
}

TEST_F(EmulatorTest, AsynchronousCopiesArePoisonUntilWaitAndBarrier) {
  const std::string poison = "where a CopyAsync16 has not been waited for";
  EXPECT_THAT(RunCopy(args(), kCommit | kBarrier), HasSubstr(poison));
  EXPECT_THAT(RunCopy(args(), kWait | kBarrier), HasSubstr(poison)) << "not committed";
  EXPECT_THAT(RunCopy(args(), kCommit | kWait), HasSubstr("race: read of byte 4"));
  EXPECT_EQ(RunCopy(args(), kCommit | kWait | kBarrier), kNoFault);
  EXPECT_EQ(fresh_.Download(), filled_.Download());
}

TEST_F(EmulatorTest, CopyWaitLeavesTheYoungestCommitsUnderWay) {
  const Kernel kernel = [](Args args) {
    LYNX_SHARED(float, s, 8);
    for (int i = 0; i < 2; ++i) {
      CopyAsync16(Cast<std::byte>(s + 4 * i), Cast<std::byte>(args.a + 4 * i));
      CopyCommit();
    }
    CopyWait<1>();
    Use<float>(s[4 * args.n]);
  };
  const LaunchShape one = {.block = dim3(1)};
  EXPECT_EQ(ReportOf(kernel, {.a = filled_.data(), .n = 0}, one), kNoFault);
  EXPECT_THAT(ReportOf(kernel, {.a = filled_.data(), .n = 1}, one),
              HasSubstr("not been waited for"));
  EXPECT_THAT(ReportOf(kernel, {.a = fresh_.data()}, one), HasSubstr("uninitialized"));
}

// ---- correct kernels ----------------------------------------------------------------------------
TEST_F(EmulatorTest, ABlockSumsItsInput) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = static_cast<float>(i);
  filled_.Upload(values);
  EXPECT_EQ(ReportOf(
                [](Args args) {
                  LYNX_SHARED(float, sums, 2);
                  float sum = args.a[threadIdx.x];
                  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(kFullMask, sum, d);
                  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
                  __syncthreads();
                  if (threadIdx.x == 0) args.b[0] = sums[0] + sums[1];
                },
                args()),
            kNoFault);
  EXPECT_EQ(fresh_.Download()[0], 2016.0f);
}

TEST_F(EmulatorTest, VotesAndCounts) {
  EXPECT_EQ(ReportOf(
                [](Args args) {
                  const int t = static_cast<int>(threadIdx.x);
                  const bool odd = t % 2 == 1;
                  bool ok = __syncthreads_count(odd) == 32;
                  ok = ok && __syncthreads_or(t == 63) && !__syncthreads_or(0);
                  ok = ok && __syncthreads_and(1) && !__syncthreads_and(t != 3);
                  ok = ok && __ballot_sync(kFullMask, odd) == 0xaaaaaaaau;
                  ok = ok && __any_sync(kFullMask, t == 31) == (t < 32);
                  ok = ok && __all_sync(kFullMask, t < 32) == (t < 32);
                  ok =
                      ok && __match_any_sync(kFullMask, t % 2) == (odd ? 0xaaaaaaaau : 0x55555555u);
                  ok = ok && __reduce_max_sync(kFullMask, t) == (t | 31);
                  args.b[t] = ok ? 1.0f : 0.0f;
                },
                args()),
            kNoFault);
  EXPECT_EQ(fresh_.Download(), std::vector<float>(64, 1.0f));
}

TEST_F(EmulatorTest, ShufflesStayInTheirSegments) {
  EXPECT_EQ(ReportOf(
                [](Args args) {
                  const int lane = static_cast<int>(threadIdx.x % 32);
                  bool ok = __shfl_sync(kFullMask, lane, 3) == 3;
                  ok = ok && __shfl_sync(kFullMask, lane, 11, 8) == lane / 8 * 8 + 3;
                  ok = ok && __shfl_xor_sync(kFullMask, lane, 5) == (lane ^ 5);
                  ok = ok &&
                       __shfl_up_sync(kFullMask, lane, 2, 4) == (lane % 4 >= 2 ? lane - 2 : lane);
                  ok = ok && __shfl_down_sync(kFullMask, lane, 1, 16) ==
                                 (lane % 16 == 15 ? lane : lane + 1);
                  args.b[threadIdx.x] = ok ? 1.0f : 0.0f;
                },
                args()),
            kNoFault);
  EXPECT_EQ(fresh_.Download(), std::vector<float>(64, 1.0f));
}

TEST_F(EmulatorTest, DenormalsAreZeroInKernelsOnly) {
  filled_.Upload(std::vector<float>(64, 1e-40f));
  EXPECT_EQ(ReportOf([](Args args) { args.b[threadIdx.x] = args.a[threadIdx.x] * 1e10f; }, args()),
            kNoFault);
  EXPECT_EQ(fresh_.Download(), std::vector<float>(64, 0.0f));
  volatile float denormal = 1e-40f;
  EXPECT_GT(denormal * 1e10f, 0.0f);
}

TEST_F(EmulatorTest, BlocksComeInTheOrderOfTheSeed) {
  const auto order = [&](uint64_t seed) {
    simt::SetBlockOrder(seed);
    cudaMemset(filled_.data(), 0, 4);
    ReportOf([](Args args) { args.b[blockIdx.x] = atomicAdd(args.a, 1.0f); }, args(),
             {.grid = dim3(64), .block = dim3(1)});
    simt::SetBlockOrder(1);
    return fresh_.Download();
  };
  std::vector<float> ascending(64);
  for (int i = 0; i < 64; ++i) ascending[i] = static_cast<float>(i);
  EXPECT_EQ(order(0), ascending);
  EXPECT_NE(order(1), ascending);
  EXPECT_NE(order(1), order(2));
  EXPECT_EQ(order(2), order(2));
}

TEST_F(EmulatorTest, IndicesOfThreeDimensions) {
  DeviceArray<float> seen(2 * 3 * 2 * 5 * 2 * 2);
  EXPECT_EQ(ReportOf(
                [](Args args) {
                  const unsigned block_id =
                      (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
                  const unsigned thread_id =
                      (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
                  args.a[block_id * 20 + thread_id] = 1.0f;
                },
                {.a = seen.data()}, {.grid = dim3(2, 3, 2), .block = dim3(5, 2, 2)}),
            kNoFault);
  EXPECT_EQ(seen.Download(), std::vector<float>(240, 1.0f));
}

TEST_F(EmulatorTest, LaunchesOfSeveralHostThreadsTakeTurns) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      DeviceArray<float> mine(64);
      for (int i = 0; i < 20; ++i) {
        const Args args = {.b = mine.data(), .n = i};
        const std::string report = ReportOf(
            [](Args args) {
              LYNX_SHARED(float, s, 64);
              s[threadIdx.x] = static_cast<float>(args.n);
              __syncthreads();
              args.b[threadIdx.x] = s[threadIdx.x ^ 33];
            },
            args);
        EXPECT_EQ(report, kNoFault);
        EXPECT_EQ(mine.Download(), std::vector<float>(64, static_cast<float>(i)));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace lynx::cuda
