// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/nccl_collective.h"
#include "kernels/cuda/rank_sum.h"

namespace lynx::cuda {
namespace {

constexpr int64_t kSliceFloats = 32;  // slices begin on 128-byte lines

// What is used of libnccl.so.2. Loaded, not linked: machines without it run everything else.
struct Nccl {
  decltype(&ncclCommInitAll) CommInitAll = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;

  bool Load() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto get = [library](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return get("ncclCommInitAll", CommInitAll) && get("ncclCommDestroy", CommDestroy) &&
           get("ncclCommAbort", CommAbort) && get("ncclGroupStart", GroupStart) &&
           get("ncclGroupEnd", GroupEnd) && get("ncclSend", Send) && get("ncclRecv", Recv) &&
           get("ncclGetErrorString", GetErrorString) &&
           get("ncclCommGetAsyncError", CommGetAsyncError);
  }
};

class Group {
 public:
  ~Group() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    if (watch_.joinable()) watch_.join();
    if (aborted) return;
    for (ncclComm_t comm : comms) nccl.CommDestroy(comm);
  }
  // ncclCommAbort ends the kernels that wait for other ranks.
  void Abort() {
    std::lock_guard lock(mutex_);
    AbortLocked();
  }
  // Once there are comms: a rank that fails while others wait for it on the device aborts them all.
  void Watch() {
    watch_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      while (!stop_.wait_for(lock, kWatchInterval, [this] { return stopping_ || aborted; })) {
        AbortIfOneFailed();
      }
    });
  }

  Nccl nccl;
  std::vector<ncclComm_t> comms;  // [rank]
  std::atomic<bool> aborted{false};

 private:
  static constexpr std::chrono::milliseconds kWatchInterval{200};

  void AbortLocked() {
    if (aborted.exchange(true)) return;
    for (ncclComm_t comm : comms) nccl.CommAbort(comm);
  }
  void AbortIfOneFailed() {
    for (size_t rank = 0; rank < comms.size(); ++rank) {
      ncclResult_t state = ncclSuccess;
      ncclResult_t asked = nccl.CommGetAsyncError(comms[rank], &state);
      if (asked == ncclSuccess) asked = state;
      if (asked == ncclSuccess || asked == ncclInProgress) continue;
      std::fprintf(stderr, "NCCL: rank %zu has failed: %s\n", rank, nccl.GetErrorString(asked));
      return AbortLocked();
    }
  }

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread watch_;
};

class NcclCollective final : public Collective {
 public:
  // parts: device memory of the rank, [size][slice of max_count], owned from here on.
  NcclCollective(int rank, const NcclRank& place, std::shared_ptr<Group> group, float* parts)
      : rank_(rank), place_(place), group_(std::move(group)), parts_(parts) {}
  ~NcclCollective() override {
    cudaSetDevice(place_.device);
    cudaFree(parts_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->comms.size()); }
  bool AllReduceSum(float* data, int64_t n) override;
  void Abort() override { group_->Abort(); }

 private:
  // Which elements of n a rank adds.
  struct Slice {
    int64_t begin, count;
  };
  Slice SliceOf(int rank, int64_t n) const;
  bool ExchangeParts(const float* data, int64_t n, int64_t stride);
  bool ExchangeSums(float* data, int64_t n);
  bool SendAndReceive(const float* send, int64_t num_sent, float* receive, int64_t num_received,
                      int peer);
  bool Succeeded(ncclResult_t result, const char* what);

  const int rank_;
  const NcclRank place_;
  const std::shared_ptr<Group> group_;  // shared by its ranks, whichever ends last
  float* const parts_;
};

int64_t SliceFloats(int64_t n, int size) {
  const int64_t per_rank = (n + size - 1) / size;
  return (per_rank + kSliceFloats - 1) / kSliceFloats * kSliceFloats;
}

NcclCollective::Slice NcclCollective::SliceOf(int rank, int64_t n) const {
  const int64_t slice = SliceFloats(n, size());
  const int64_t begin = std::min(n, rank * slice);
  return {begin, std::min(n - begin, slice)};
}

bool NcclCollective::Succeeded(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return true;
  std::fprintf(stderr, "NCCL: rank %d: %s: %s\n", rank_, what, group_->nccl.GetErrorString(result));
  Abort();
  return false;
}

bool NcclCollective::AllReduceSum(float* data, int64_t n) {
  if (group_->aborted) return false;
  AbortOnError(cudaSetDevice(place_.device), "cudaSetDevice");
  const int64_t stride = SliceFloats(n, size());
  if (!ExchangeParts(data, n, stride)) return false;
  const Slice own = SliceOf(rank_, n);
  RankSum(place_.stream, data + own.begin, parts_, own.count, stride, rank_, size());
  return ExchangeSums(data, n);
}

// One peer's share of an exchange; inside a group.
bool NcclCollective::SendAndReceive(const float* send, int64_t num_sent, float* receive,
                                    int64_t num_received, int peer) {
  const Nccl& nccl = group_->nccl;
  ncclComm_t comm = group_->comms[rank_];
  return Succeeded(nccl.Send(send, num_sent, ncclFloat, peer, comm, place_.stream), "ncclSend") &&
         Succeeded(nccl.Recv(receive, num_received, ncclFloat, peer, comm, place_.stream),
                   "ncclRecv");
}

// Every rank's part of this rank's slice, into parts_.
bool NcclCollective::ExchangeParts(const float* data, int64_t n, int64_t stride) {
  const Nccl& nccl = group_->nccl;
  const int64_t own_count = SliceOf(rank_, n).count;
  if (!Succeeded(nccl.GroupStart(), "ncclGroupStart")) return false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const Slice slice = SliceOf(peer, n);
    if (!SendAndReceive(data + slice.begin, slice.count, parts_ + peer * stride, own_count, peer)) {
      return false;
    }
  }
  return Succeeded(nccl.GroupEnd(), "exchange of parts");
}

// This rank's sums to everybody, everybody's to here.
bool NcclCollective::ExchangeSums(float* data, int64_t n) {
  const Nccl& nccl = group_->nccl;
  const Slice own = SliceOf(rank_, n);
  if (!Succeeded(nccl.GroupStart(), "ncclGroupStart")) return false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const Slice slice = SliceOf(peer, n);
    if (!SendAndReceive(data + own.begin, own.count, data + slice.begin, slice.count, peer)) {
      return false;
    }
  }
  return Succeeded(nccl.GroupEnd(), "exchange of sums");
}

// Lets every device reach the others' memory; null, or what stands in the way.
const char* ConnectDevices(std::span<const NcclRank> ranks) {
  for (const NcclRank& from : ranks) {
    AbortOnError(cudaSetDevice(from.device), "cudaSetDevice");
    for (const NcclRank& to : ranks) {
      if (from.device == to.device) continue;
      int can = 0;
      AbortOnError(cudaDeviceCanAccessPeer(&can, from.device, to.device),
                   "cudaDeviceCanAccessPeer");
      if (can == 0) return "the GPUs cannot reach each other's memory";
      const cudaError_t result = cudaDeviceEnablePeerAccess(to.device, 0);
      if (result == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
      } else if (result != cudaSuccess) {
        return cudaGetErrorString(result);
      }
    }
  }
  return nullptr;
}

// Null, or why there is no group.
const char* Connect(std::span<const NcclRank> ranks, Group& group) {
  if (!group.nccl.Load()) return "libnccl.so.2 cannot be loaded";
  if (const char* error = ConnectDevices(ranks)) return error;
  std::vector<int> devices;
  for (const NcclRank& rank : ranks) devices.push_back(rank.device);
  std::vector<ncclComm_t> comms(ranks.size());
  const ncclResult_t result =
      group.nccl.CommInitAll(comms.data(), static_cast<int>(devices.size()), devices.data());
  if (result != ncclSuccess) return group.nccl.GetErrorString(result);
  group.comms = std::move(comms);
  group.Watch();
  return nullptr;
}

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeNcclCollectives(std::span<const NcclRank> ranks,
                                                             int64_t max_count, char* error,
                                                             size_t error_bytes) {
  auto group = std::make_shared<Group>();
  if (const char* why = Connect(ranks, *group)) {
    std::snprintf(error, error_bytes, "%s", why);
    return {};
  }
  const int size = static_cast<int>(ranks.size());
  const size_t parts_bytes = SliceFloats(max_count, size) * size * sizeof(float);
  std::vector<std::unique_ptr<Collective>> members;
  for (int r = 0; r < size; ++r) {
    float* parts = nullptr;
    AbortOnError(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    if (cudaMalloc(&parts, parts_bytes) != cudaSuccess) {
      std::snprintf(error, error_bytes, "no memory for an exchange of %zu bytes", parts_bytes);
      return {};
    }
    members.push_back(std::make_unique<NcclCollective>(r, ranks[r], group, parts));
  }
  return members;
}

}  // namespace lynx::cuda
