// SPDX-License-Identifier: Apache-2.0
#include "rpc/daemon_info.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lynx {

std::string Disagreement(const v1::DaemonInfo& here, const v1::DaemonInfo& there) {
  const auto differ = [&](const char* field, const auto& a, const auto& b) {
    return absl::StrCat(field, ": ", a, " in ", here.name(), ", ", b, " in ", there.name());
  };
  const auto hex = [](uint64_t v) { return absl::StrFormat("0x%016x", v); };
#define LYNX_COMPARE(field) \
  if (here.field() != there.field()) return differ(#field, here.field(), there.field())
  LYNX_COMPARE(protocol_version);
  LYNX_COMPARE(plane_format_version);
  if (here.model_hash() != there.model_hash()) {
    return differ("model_hash", hex(here.model_hash()), hex(there.model_hash()));
  }
  LYNX_COMPARE(backend);
  LYNX_COMPARE(compute);
  LYNX_COMPARE(kv_dtype);
  LYNX_COMPARE(num_layers);
  LYNX_COMPARE(num_kv_heads);
  LYNX_COMPARE(head_dim);
  LYNX_COMPARE(block_size);
  LYNX_COMPARE(codec);
  if ((here.kv_resident() == "8bit") != (there.kv_resident() == "8bit")) {
    return differ("kv_resident", here.kv_resident(), there.kv_resident());
  }
  LYNX_COMPARE(prefill_tensor_parallel_size);
  LYNX_COMPARE(decode_tensor_parallel_size);
  if (here.send_plan_hash() != there.send_plan_hash()) {
    return differ("send_plan_hash", hex(here.send_plan_hash()), hex(there.send_plan_hash()));
  }
#undef LYNX_COMPARE
  return "";
}

}  // namespace lynx
