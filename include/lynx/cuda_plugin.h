// SPDX-License-Identifier: Apache-2.0
// What liblynx_cuda.so gives to the program, which opens it only when a GPU is asked for: so one
// program starts on machines without the CUDA libraries and the driver. Both are built together.
#pragma once

#include <cstddef>

#include "lynx/backend.h"
#include "lynx/collective.h"

extern "C" {

// Null when the device cannot be used, with *error saying why, at most error_bytes long. The caller
// deletes the back-end.
using LynxCreateCudaBackend = lynx::Backend*(int device, int num_threads, char* error,
                                             size_t error_bytes);
LynxCreateCudaBackend lynx_create_cuda_backend;

// Without starting anything on the device: false when it cannot be used.
using LynxCheckCudaDevice = bool(int device, char* error, size_t error_bytes);
LynxCheckCudaDevice lynx_check_cuda_device;

// The group of num_ranks back-ends of this library on different devices, for sums of up to
// max_count numbers; also lets every device read and write the others' memory. Fills
// collectives[num_ranks], which the caller deletes before the back-ends. False when NCCL or the
// way between two devices is missing.
using LynxCreateCudaCollectives = bool(lynx::Backend* const* backends, int num_ranks,
                                       int64_t max_count, lynx::Collective** collectives,
                                       char* error, size_t error_bytes);
LynxCreateCudaCollectives lynx_create_cuda_collectives;
}
