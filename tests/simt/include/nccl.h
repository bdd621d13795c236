// SPDX-License-Identifier: Apache-2.0
// The part of NCCL that kernels/cuda/nccl_collective uses, between emulated devices: sends and
// receives of a group are one operation of their stream, which ends when each has met its
// counterpart (tests/simt/nccl.cc, built as libnccl.so.2).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

extern "C" {

enum ncclResult_t {
  ncclSuccess = 0,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t { ncclFloat = 7 };

struct ncclComm;
using ncclComm_t = ncclComm*;

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int num_devices, const int* devices);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
// What its stream waits for ends. Later calls with it are invalid.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
const char* ncclGetErrorString(ncclResult_t result);

// For tests: from now on the rank's communicators of all groups report ncclRemoteError.
void SimtNcclFail(int rank);
}
