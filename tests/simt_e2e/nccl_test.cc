// SPDX-License-Identifier: Apache-2.0
// NcclCollective between emulated devices, one thread each: the sums of ThreadCollective, and the
// same end for all when one rank fails.
#include <nccl.h>

#include <atomic>
#include <functional>

#include "kernels/cpu/thread_collective.h"
#include "kernels/cuda/nccl_collective.h"
#include "kernels/cuda/stream.h"
#include "model/tensor_parallel.h"
#include "simt/streams.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/model/sequence_runner.h"
#include "tests/ranks.h"
#include "tests/simt_e2e/simt_models.h"

namespace lynx::cuda {
namespace {

constexpr int64_t kMaxCount = 5000;

using cpu::SameBits;
using Collectives = std::vector<std::unique_ptr<Collective>>;
using RankData = std::vector<std::vector<float>>;

void RunOnDevices(int size, const std::function<void(int rank)>& run) {
  RunRanks(size, [&](int r) {
    cudaSetDevice(r);
    run(r);
  });
}

// One stream on each device.
class NcclTest : public testing::Test {
 protected:
  void Make(int size) {
    simt::SetNumDevices(size);
    std::vector<NcclRank> ranks;
    for (int r = 0; r < size; ++r) {
      cudaSetDevice(r);
      streams_.push_back(std::make_unique<Stream>());
      ranks.push_back({.device = r, .stream = streams_[r]->get()});
    }
    char error[256] = {};
    ranks_ = MakeNcclCollectives(ranks, kMaxCount, error, sizeof(error));
    ASSERT_EQ(static_cast<int>(ranks_.size()), size) << error;
  }
  void Clear() {
    ranks_.clear();
    streams_.clear();
    cudaSetDevice(0);
    simt::SetNumDevices(1);
  }
  void TearDown() override { Clear(); }

  // What rank r has after the sum; empty when it failed.
  std::vector<float> Sum(int r, const std::vector<float>& x) {
    const DeviceArray<float> data(x);
    if (!ranks_[r]->AllReduceSum(data.data(), static_cast<int64_t>(x.size()))) return {};
    streams_[r]->Synchronize();
    return data.Download();
  }

  std::vector<std::unique_ptr<Stream>> streams_;
  Collectives ranks_;
};

RankData ThreadSums(RankData data) {
  const int size = static_cast<int>(data.size());
  const auto ranks = cpu::MakeThreadCollectives(size);
  RunRanks(size, [&](int r) {
    EXPECT_TRUE(ranks[r]->AllReduceSum(data[r].data(), static_cast<int64_t>(data[r].size())));
  });
  return data;
}

TEST_F(NcclTest, SumsHaveTheBitsOfThreadCollectiveOnEveryRank) {
  for (const int size : {1, 2, 3, 4}) {
    Make(size);
    for (const int64_t n : {0, 1, 31, 33, 576, 5000}) {
      const RankData data = RandomRankData(size, n, static_cast<unsigned>(n + 1));
      const RankData want = ThreadSums(data);
      RankData got(size);
      RunOnDevices(size, [&](int r) { got[r] = Sum(r, data[r]); });
      for (int r = 0; r < size; ++r) {
        EXPECT_TRUE(SameBits(got[r], want[r])) << n << " on rank " << r << " of " << size;
      }
    }
    Clear();
  }
}

TEST_F(NcclTest, AnElementDoesNotDependOnItsCompany) {
  Make(3);
  const RankData data = RandomRankData(3, 3000, 7);
  const std::vector<float> want = ThreadSums(data)[0];
  for (const int64_t begin : {1, 100, 2999}) {
    RankData got(3);
    RunOnDevices(3, [&](int r) { got[r] = Sum(r, {data[r].begin() + begin, data[r].end()}); });
    EXPECT_TRUE(SameBits(got[1], {want.begin() + begin, want.end()})) << begin;
  }
}

// Queued one behind the other, before anybody waits.
TEST_F(NcclTest, ManySumsInARowFollowEachOther) {
  Make(2);
  RunOnDevices(2, [&](int r) {
    std::vector<DeviceArray<float>> data;
    for (int call = 0; call < 40; ++call) {
      data.emplace_back(std::vector<float>(1 + call, static_cast<float>(r + call)));
    }
    for (const auto& x : data) {
      ASSERT_TRUE(ranks_[r]->AllReduceSum(x.data(), static_cast<int64_t>(x.size())));
    }
    streams_[r]->Synchronize();
    for (int call = 0; call < 40; ++call) {
      EXPECT_EQ(data[call].Download(),
                std::vector<float>(1 + call, static_cast<float>(1 + 2 * call)));
    }
  });
}

TEST_F(NcclTest, AbortEndsTheRanksThatWaitForGood) {
  Make(3);
  const RankData data = RandomRankData(3, 100, 3);
  RunOnDevices(3, [&](int r) {
    if (r == 2) {
      ranks_[2]->Abort();  // instead of taking part
    } else {
      Sum(r, data[r]);
    }
  });
  for (int r = 0; r < 3; ++r) {
    cudaSetDevice(r);
    const DeviceArray<float> x(data[r]);
    EXPECT_FALSE(ranks_[r]->AllReduceSum(x.data(), 100));
  }
}

// Its communicator says so to whoever asks; nobody on the device would find out.
TEST_F(NcclTest, ARankThatFailedEndsTheOthers) {
  Make(2);
  const std::vector<float> ones(100, 1.0f);
  RunOnDevices(2, [&](int r) {
    if (r == 0) {
      Sum(0, ones);  // waits for rank 1
    } else {
      SimtNcclFail(1);
    }
  });
  cudaSetDevice(0);
  const DeviceArray<float> x(ones);
  EXPECT_FALSE(ranks_[0]->AllReduceSum(x.data(), 100));
}

TEST_F(NcclTest, SaysWhyThereIsNoGroup) {
  simt::SetNumDevices(2);
  const Stream stream;
  const NcclRank twice[] = {{.device = 0, .stream = stream.get()},
                            {.device = 0, .stream = stream.get()}};
  char error[256] = {};
  EXPECT_TRUE(MakeNcclCollectives(twice, 1, error, sizeof(error)).empty());
  EXPECT_STREQ(error, "invalid usage");
}

// ---- a model ------------------------------------------------------------------------------------
// The sums of ThreadCollective for data in device memory.
class StagedCollective final : public Collective {
 public:
  StagedCollective(Backend& backend, std::unique_ptr<Collective> inner)
      : backend_(backend), inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool AllReduceSum(float* data, int64_t n) override {
    std::vector<float> host(n);
    backend_.Download(host.data(), data, n * sizeof(float));
    if (!inner_->AllReduceSum(host.data(), n)) return false;
    backend_.Upload(data, host.data(), n * sizeof(float));
    return true;
  }
  void Abort() override { inner_->Abort(); }

 private:
  Backend& backend_;
  const std::unique_ptr<Collective> inner_;
};

std::vector<float> TwoRankLogits(bool nccl) {
  std::vector<std::unique_ptr<CudaBackend>> owned;
  std::vector<Backend*> backends;
  char error[256] = {};
  for (int r = 0; r < 2; ++r) {
    owned.push_back(CudaBackend::Create({.device = r}, error, sizeof(error)));
    backends.push_back(owned.back().get());
  }
  const auto make = [&](int64_t max_count) -> absl::StatusOr<Collectives> {
    if (!nccl) {
      Collectives members = cpu::MakeThreadCollectives(2);
      for (int r = 0; r < 2; ++r) {
        members[r] = std::make_unique<StagedCollective>(*backends[r], std::move(members[r]));
      }
      return members;
    }
    const NcclRank ranks[] = {{.device = 0, .stream = owned[0]->compute_stream()},
                              {.device = 1, .stream = owned[1]->compute_stream()}};
    return MakeNcclCollectives(ranks, max_count, error, sizeof(error));
  };
  const auto model = LoadTensorParallel(TinyModels()[0].path, backends, make, 96);
  EXPECT_TRUE(model.ok()) << model.status();
  SequenceRunner runner(**model, 4);
  TestSequence sequence = runner.NewSequence(90);
  std::vector<TokenId> tokens(90);
  for (int i = 0; i < 90; ++i) tokens[i] = i * 13 % runner.vocab_size();
  return runner.Feed(sequence, tokens, 50, SequenceRunner::Rows::kAll);
}

TEST_F(NcclTest, TwoRanksOfAModelHaveTheBitsOfThreadCollective) {
  simt::SetNumDevices(2);
  const std::vector<float> want = TwoRankLogits(/*nccl=*/false);
  EXPECT_FALSE(want.empty());
  EXPECT_TRUE(SameBits(TwoRankLogits(/*nccl=*/true), want));
}

}  // namespace
}  // namespace lynx::cuda
