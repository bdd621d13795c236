// SPDX-License-Identifier: Apache-2.0
// What liblynx_cuda.so gives to the program, which opens it only when a GPU is asked for: so one
// program starts on machines without the CUDA libraries and the driver. Both are built together.
#pragma once

#include <cstddef>

#include "lynx/backend.h"

extern "C" {

// Null when the device cannot be used, with *error saying why, at most error_bytes long. The caller
// deletes the back-end.
using LynxCreateCudaBackend = lynx::Backend*(int device, int num_threads, char* error,
                                             size_t error_bytes);
LynxCreateCudaBackend lynx_create_cuda_backend;

// Without starting anything on the device: false when it cannot be used.
using LynxCheckCudaDevice = bool(int device, char* error, size_t error_bytes);
LynxCheckCudaDevice lynx_check_cuda_device;
}
