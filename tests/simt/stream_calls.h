// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/simt/stream_queue.h"

namespace lynx::simt {

// Null: the calling thread's device's default stream.
std::shared_ptr<StreamState> StateOf(cudaStream_t stream);

// A host function has run and may have written to any host memory.
void NoteHostFunction();

}  // namespace lynx::simt
