// SPDX-License-Identifier: Apache-2.0
// libnccl.so.2 for emulated devices.
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simt/launch.h"
#include "simt/streams.h"
#include "tests/simt/device_memory.h"
#include "tests/simt/devices.h"

namespace simt = lynx::simt;

namespace {

struct Exchange;

// One send or receive whose stream has come to it.
struct Part {
  std::shared_ptr<Exchange> exchange;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

struct Clique {
  explicit Clique(int size) : sends(size * size), receives(size * size), size(size) {}
  std::vector<std::deque<Part>> sends, receives;  // [from · size + to]
  const int size;
};

}  // namespace

// Never freed, as NCCL's callers may come too late. Changes while no operation runs.
struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  bool ended = false;
  bool failed = false;
};

namespace {

std::vector<std::unique_ptr<ncclComm>>& Comms() {
  static auto* comms = new std::vector<std::unique_ptr<ncclComm>>;
  return *comms;
}

struct Call {
  bool is_send = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
};

// What one group queues in one stream.
struct Exchange : std::enable_shared_from_this<Exchange> {
  ncclComm* comm = nullptr;
  std::vector<Call> calls;
  size_t num_left = 0;
  bool arrived = false;

  bool Run();

 private:
  void Arrive();
  void GiveUp() const;
};

void Move(const Part& from, const Part& to) {
  if (from.bytes != to.bytes) {
    throw simt::Fault("NCCL: a send of " + std::to_string(from.bytes) +
                      " bytes meets a receive of " + std::to_string(to.bytes));
  }
  if (to.bytes > 0) {
    const simt::HostRange source = simt::ReachRange(from.data, from.bytes, "ncclSend");
    const simt::HostRange target = simt::ReachRange(to.data, to.bytes, "ncclRecv");
    std::memcpy(target.bytes, source.bytes, to.bytes);
    std::memcpy(target.shadow, source.shadow, to.bytes);
  }
  --from.exchange->num_left;
  --to.exchange->num_left;
}

void Exchange::Arrive() {
  Clique& clique = *comm->clique;
  for (const Call& call : calls) {
    const int pair =
        call.is_send ? comm->rank * clique.size + call.peer : call.peer * clique.size + comm->rank;
    auto& own = call.is_send ? clique.sends[pair] : clique.receives[pair];
    own.push_back({shared_from_this(), call.data, call.bytes});
    while (!clique.sends[pair].empty() && !clique.receives[pair].empty()) {
      Move(clique.sends[pair].front(), clique.receives[pair].front());
      clique.sends[pair].pop_front();
      clique.receives[pair].pop_front();
    }
  }
}

// What was to be received is unspecified.
void Exchange::GiveUp() const {
  for (const Call& call : calls) {
    if (call.is_send || call.bytes == 0) continue;
    std::memset(simt::ReachRange(call.data, call.bytes, "ncclRecv").shadow, 1, call.bytes);
  }
}

bool Exchange::Run() {
  if (comm->ended) {
    GiveUp();
    return true;
  }
  if (!std::exchange(arrived, true)) Arrive();
  return num_left == 0;
}

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;

// The calls of one communicator and stream.
void QueueExchange(std::vector<Call> calls) {
  auto exchange = std::make_shared<Exchange>();
  exchange->comm = calls[0].comm;
  exchange->num_left = calls.size();
  exchange->calls = std::move(calls);
  simt::EnqueueMeeting(exchange->calls[0].stream,
                       {.kind = simt::OperationKind::kMeeting, .name = "NCCL exchange"},
                       [exchange] { return exchange->Run(); });
}

ncclResult_t AddCall(const Call& call) {
  if (call.comm->ended || call.peer < 0 || call.peer >= call.comm->clique->size) {
    return ncclInvalidArgument;
  }
  if (call.bytes > 0) {
    const simt::HostRange range = simt::ReachRange(call.data, call.bytes, "NCCL");
    if (range.allocation == nullptr || range.allocation->device != call.comm->device) {
      throw simt::Fault("NCCL: the buffer is not memory of the communicator's device");
    }
  }
  ncclGroupStart();
  group_calls.push_back(call);
  return ncclGroupEnd();
}

ncclResult_t End(ncclComm* comm) {
  simt::ChangeBetweenOperations([comm] {
    comm->ended = true;
    Clique& clique = *comm->clique;
    for (int peer = 0; peer < clique.size; ++peer) {
      clique.sends[comm->rank * clique.size + peer].clear();
      clique.receives[peer * clique.size + comm->rank].clear();
    }
  });
  return ncclSuccess;
}

size_t BytesOf(size_t count) { return count * sizeof(float); }

}  // namespace

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int num_devices, const int* devices) {
  const std::set<int> distinct(devices, devices + num_devices);
  if (static_cast<int>(distinct.size()) != num_devices || *distinct.begin() < 0 ||
      *distinct.rbegin() >= simt::NumDevices()) {
    return ncclInvalidUsage;
  }
  const auto clique = std::make_shared<Clique>(num_devices);
  simt::ChangeBetweenOperations([&] {
    for (int rank = 0; rank < num_devices; ++rank) {
      Comms().push_back(std::make_unique<ncclComm>());
      comms[rank] = Comms().back().get();
      comms[rank]->clique = clique;
      comms[rank]->rank = rank;
      comms[rank]->device = devices[rank];
    }
  });
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return End(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return End(comm); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  simt::ChangeBetweenOperations([&] { *state = comm->failed ? ncclRemoteError : ncclSuccess; });
  return ncclSuccess;
}

void SimtNcclFail(int rank) {
  simt::ChangeBetweenOperations([rank] {
    for (const auto& comm : Comms()) comm->failed |= comm->rank == rank;
  });
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  std::vector<Call> calls = std::exchange(group_calls, {});
  while (!calls.empty()) {
    const Call first = calls[0];
    const auto other = std::stable_partition(calls.begin(), calls.end(), [&](const Call& call) {
      return call.comm == first.comm && call.stream == first.stream;
    });
    QueueExchange({calls.begin(), other});
    calls.erase(calls.begin(), other);
  }
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  auto* bytes = static_cast<std::byte*>(const_cast<void*>(data));
  return AddCall({true, bytes, BytesOf(count), peer, comm, stream});
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return AddCall({false, static_cast<std::byte*>(data), BytesOf(count), peer, comm, stream});
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "in progress";
  }
  return "unknown result code";
}
