// SPDX-License-Identifier: Apache-2.0
#include "app/check_model.h"

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace lynx {

absl::Status CheckModel(const std::string& path) {
  // With kF32 nothing is packed: loading is checking.
  const auto backend = cpu::CpuBackend::Create({.compute = Compute::kF32});
  LYNX_RETURN_IF_ERROR(Model::Load(path, *backend, /*max_rows=*/1).status());
  return Tokenizer::Load(path).status();
}

}  // namespace lynx
