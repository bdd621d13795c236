// SPDX-License-Identifier: Apache-2.0
// The emulated streams: nothing runs before the host waits for it, a dependency that is missing is
// noticed, and one that is stated holds in every order.
#include "simt/streams.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/stream.h"
#include "tests/conformance/device.h"
#include "tests/simt/fault_of.h"

namespace lynx::cuda {
namespace {

using simt::FaultOf;
using simt::kNoFault;
using simt::OperationKind;
using simt::StreamOrder;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr size_t kBytes = 64 * sizeof(float);

struct AddArgs {
  Global<const float> in;
  Global<float> out;
  float add = 0;
};
void AddKernel(AddArgs args) { args.out[threadIdx.x] = args.in[threadIdx.x] + args.add; }

void Add(const Stream& stream, const float* in, float* out, float add, const char* name = "Add") {
  Launch({.block = dim3(64), .stream = stream.get()}, AddKernel,
         AddArgs{.in = in, .out = out, .add = add}, name);
}

class SimtStreams : public DeviceTest {
 protected:
  SimtStreams()
      : a_(std::vector<float>(64, 1.0f)),
        b_(64),
        c_(64),
        pinned_memory_(AllocatePinned(kBytes)),
        pinned_(ArrayAt<float>(pinned_memory_.get(), 0)) {
    std::fill_n(pinned_, 64, 0.0f);
  }
  ~SimtStreams() override { simt::SetStreamOrder(StreamOrder::kNeeded); }

  DeviceArray<float> a_, b_, c_;
  PinnedMemory pinned_memory_;
  float* const pinned_;
  const Stream first_, second_;
  const Event event_;
};

TEST_F(SimtStreams, NothingRunsBeforeTheHostWaits) {
  Add(first_, a_.data(), b_.data(), 1);
  first_.Copy(pinned_, b_.data(), kBytes, cudaMemcpyDeviceToHost);
  EXPECT_EQ(pinned_[5], 0.0f);
  first_.Synchronize();
  EXPECT_EQ(pinned_[5], 2.0f);

  simt::SetStreamOrder(StreamOrder::kAtOnce);
  Add(first_, a_.data(), b_.data(), 2);
  first_.Copy(pinned_, b_.data(), kBytes, cudaMemcpyDeviceToHost);
  EXPECT_EQ(pinned_[5], 3.0f);
}

// b is written in one stream and read in another.
std::string ReadAcrossStreams(const Stream& writer, const Stream& reader, const float* a, float* b,
                              float* c, const Event* event) {
  Add(writer, a, b, 1, "Writer");
  if (event != nullptr) {
    event->Record(writer);
    reader.WaitFor(event->get());
  }
  Add(reader, b, c, 1, "Reader");
  return FaultOf([&] { reader.Synchronize(); });
}

TEST_F(SimtStreams, AMissingWaitReadsWhatWasNotWritten) {
  EXPECT_EQ(ReadAcrossStreams(first_, second_, a_.data(), b_.data(), c_.data(), &event_), kNoFault);
  EXPECT_EQ(c_.Download()[0], 3.0f);
  DeviceArray<float> fresh(64);
  EXPECT_THAT(ReadAcrossStreams(first_, second_, a_.data(), fresh.data(), c_.data(), nullptr),
              HasSubstr("Reader block (0,0,0) thread (0,0,0): "));
}

// The host waits for the reader's stream by way of the writer's: the other way round.
TEST_F(SimtStreams, OthersFirstOverwritesWhatIsStillToBeRead) {
  for (const bool with_wait : {true, false}) {
    for (const StreamOrder order : {StreamOrder::kNeeded, StreamOrder::kOthersFirst}) {
      cudaMemset(b_.data(), 0, kBytes);
      Sync();
      simt::SetStreamOrder(order);
      Add(first_, b_.data(), c_.data(), 0);  // reads the zeros
      event_.Record(first_);
      if (with_wait) second_.WaitFor(event_.get());
      Add(second_, a_.data(), b_.data(), 0);
      first_.Synchronize();
      const bool overwritten = !with_wait && order == StreamOrder::kOthersFirst;
      EXPECT_EQ(c_.Download()[0], overwritten ? 1.0f : 0.0f);
    }
  }
}

TEST_F(SimtStreams, AnEventStandsForWhatWasQueuedWhenItWasRecorded) {
  event_.Record(first_);
  Add(first_, a_.data(), b_.data(), 1);
  second_.WaitFor(event_.get());
  event_.Record(first_);  // the wait is for the earlier record
  simt::StartTrace();
  second_.Synchronize();
  Add(second_, a_.data(), c_.data(), 1);
  event_.Synchronize();  // does not need the second stream
  const auto trace = simt::StopTrace();
  ASSERT_EQ(trace.size(), 1u);
  EXPECT_EQ(trace[0].ran, simt::StreamOperation::kNever);
  EXPECT_EQ(b_.Download()[0], 2.0f);
}

TEST_F(SimtStreams, ThePinnedSourceOfACopyStaysAsItIs) {
  std::fill_n(pinned_, 64, 7.0f);
  first_.Copy(b_.data(), pinned_, kBytes, cudaMemcpyHostToDevice);
  pinned_[3] = 8.0f;
  EXPECT_EQ(FaultOf([&] { first_.Synchronize(); }),
            "cudaMemcpyAsync: the host has changed the pinned source since the call");
  // Others may write to it: then the copy comes after.
  first_.Copy(pinned_, a_.data(), kBytes, cudaMemcpyDeviceToHost);
  first_.Copy(b_.data(), pinned_, kBytes, cudaMemcpyHostToDevice);
  EXPECT_EQ(FaultOf([&] { first_.Synchronize(); }), kNoFault);
  EXPECT_EQ(b_.Download()[3], 1.0f);
}

TEST_F(SimtStreams, PageableSourcesAreReadAtOnceAndTargetsWrittenBeforeTheCallReturns) {
  std::vector<float> pageable(64, 5.0f);
  first_.Copy(b_.data(), pageable.data(), kBytes, cudaMemcpyHostToDevice);
  pageable.assign(64, 0.0f);
  first_.Copy(pageable.data(), b_.data(), kBytes, cudaMemcpyDeviceToHost);
  EXPECT_EQ(pageable[9], 5.0f);
}

TEST_F(SimtStreams, PinnedMemoryOfQueuedWorkIsNotFreed) {
  first_.Copy(pinned_, a_.data(), kBytes, cudaMemcpyDeviceToHost);
  pinned_memory_.reset();
  EXPECT_EQ(FaultOf([&] { first_.Synchronize(); }),
            "cudaMemcpyAsync: memory was freed before the copy ran");
}

TEST_F(SimtStreams, FreeingDeviceMemoryWaitsAndKeepsTheFaultForTheNextCall) {
  Add(first_, a_.data(), b_.data(), 1);
  { DeviceArray<float> freed(64); }
  simt::StartTrace();
  first_.Synchronize();
  EXPECT_TRUE(simt::StopTrace().empty());
  EXPECT_EQ(b_.Download()[0], 2.0f);
  {
    DeviceArray<float> unwritten(64);
    Add(first_, unwritten.data(), b_.data(), 1);
  }
  EXPECT_THAT(FaultOf([&] { cudaMemset(b_.data(), 0, 4); }), HasSubstr("Add block (0,0,0)"));
}

TEST_F(SimtStreams, AFaultNamesItsKernelAndDropsWhatIsQueued) {
  DeviceArray<float> unwritten(64);
  Add(first_, a_.data(), b_.data(), 1, "Good");
  Add(first_, unwritten.data(), b_.data(), 1, "Bad");
  Add(second_, unwritten.data(), c_.data(), 1, "Dropped");
  EXPECT_THAT(FaultOf([&] { first_.Synchronize(); }), HasSubstr("Bad block (0,0,0)"));
  EXPECT_EQ(FaultOf([&] { second_.Synchronize(); }), kNoFault);
}

TEST_F(SimtStreams, QueriesMakeProgress) {
  for (int i = 0; i < 3; ++i) Add(first_, a_.data(), b_.data(), static_cast<float>(i));
  event_.Record(first_);
  second_.WaitFor(event_.get());
  int num_queries = 1;
  while (cudaStreamQuery(second_.get()) == cudaErrorNotReady) ++num_queries;
  EXPECT_EQ(num_queries, 5);
  EXPECT_EQ(cudaEventQuery(event_.get()), cudaSuccess);
}

TEST_F(SimtStreams, TheDefaultStreamWaitsForBlockingStreamsOnly) {
  cudaStream_t blocking;
  cudaStreamCreate(&blocking);
  Launch({.block = dim3(64), .stream = blocking}, AddKernel,
         AddArgs{.in = a_.data(), .out = b_.data(), .add = 4}, "Add");
  simt::StartTrace();
  Add(first_, a_.data(), c_.data(), 1, "Elsewhere");
  cudaMemcpy(pinned_, b_.data(), kBytes, cudaMemcpyDeviceToHost);
  EXPECT_EQ(pinned_[0], 5.0f);
  EXPECT_EQ(simt::StopTrace()[0].ran, simt::StreamOperation::kNever);
  cudaStreamDestroy(blocking);
}

TEST_F(SimtStreams, ATraceSaysWhatRanWhen) {
  simt::StartTrace();
  Add(first_, a_.data(), b_.data(), 1, "One");
  Add(second_, a_.data(), c_.data(), 1, "Other");
  first_.Copy(pinned_, b_.data(), kBytes, cudaMemcpyDeviceToHost);
  first_.Synchronize();
  second_.Synchronize();
  const auto trace = simt::StopTrace();
  std::vector<std::string> names;
  for (const auto& operation : trace) names.push_back(operation.name);
  EXPECT_THAT(names, ElementsAre("One", "Other", "cudaMemcpyAsync"));
  EXPECT_TRUE(trace[1].WaitedWhile(trace[2]));
  EXPECT_FALSE(trace[0].WaitedWhile(trace[2]));
  EXPECT_EQ(trace[2].kind, OperationKind::kCopy);
  EXPECT_EQ(trace[2].direction, cudaMemcpyDeviceToHost);
  EXPECT_EQ(trace[2].bytes, kBytes);
  EXPECT_EQ(trace[2].stream, simt::StreamId(first_.get()));
}

TEST_F(SimtStreams, HostFunctionsRunInTurnAndCallNothing) {
  first_.Copy(pinned_, a_.data(), kBytes, cudaMemcpyDeviceToHost);
  cudaLaunchHostFunc(
      first_.get(), [](void* p) { *static_cast<float*>(p) += 1.0f; }, pinned_);
  first_.Copy(b_.data(), pinned_, kBytes, cudaMemcpyHostToDevice);
  first_.Synchronize();
  EXPECT_EQ(b_.Download()[0], 2.0f);
  cudaLaunchHostFunc(
      first_.get(), [](void*) { cudaDeviceSynchronize(); }, nullptr);
  EXPECT_THAT(FaultOf([&] { first_.Synchronize(); }), HasSubstr("calls the runtime"));
}

// ---- two devices --------------------------------------------------------------------------------
class SimtDevices : public testing::Test {
 protected:
  SimtDevices() { simt::SetNumDevices(2); }
  ~SimtDevices() override {
    cudaSetDevice(0);
    simt::SetNumDevices(1);
  }
};

TEST_F(SimtDevices, HaveTheirOwnMemoryAndStreams) {
  size_t free_before, free_after, total;
  cudaMemGetInfo(&free_before, &total);
  cudaSetDevice(1);
  const DeviceArray<float> far(std::vector<float>(64, 1.0f));
  const Stream on_second;
  cudaSetDevice(0);
  cudaMemGetInfo(&free_after, &total);
  EXPECT_EQ(free_after, free_before);
  const DeviceArray<float> near(64);
  EXPECT_EQ(FaultOf([&] { Add(on_second, far.data(), near.data(), 1); }),
            "Add: device 0, but the stream is device 1's");
  const Stream on_first;
  Add(on_first, far.data(), near.data(), 1);
  EXPECT_THAT(FaultOf([&] { on_first.Synchronize(); }),
              HasSubstr("out of reach (memory of device 1): read of 4 bytes"));
  cudaDeviceEnablePeerAccess(1, 0);
  Add(on_first, far.data(), near.data(), 1);
  EXPECT_EQ(FaultOf([&] { on_first.Synchronize(); }), kNoFault);
  EXPECT_EQ(near.Download()[63], 2.0f);
}

}  // namespace
}  // namespace lynx::cuda
