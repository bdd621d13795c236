// SPDX-License-Identifier: Apache-2.0
#include "formats/decode_vector.h"

#include <cstring>
#include <span>

#include "formats/file_error.h"
#include "formats/weight_type.h"
#include "kernels/common/half.h"

namespace lynx {
namespace {

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

// All bits of an exponent set mean NaN or infinity.
template <typename Bits, Bits kExponent>
bool AnyNotFinite(const std::byte* data, size_t n) {
  bool bad = false;
  for (size_t i = 0; i < n; ++i) {
    bad |= (Load<Bits>(data + i * sizeof(Bits)) & kExponent) == kExponent;
  }
  return bad;
}
constexpr auto kF32NotFinite = AnyNotFinite<uint32_t, 0x7f800000>;
constexpr auto kF16NotFinite = AnyNotFinite<uint16_t, 0x7c00>;
constexpr auto kBf16NotFinite = AnyNotFinite<uint16_t, 0x7f80>;

// The half-precision scales of a block format: how many, and where in the block.
struct Scales {
  size_t offset = 0;
  size_t count = 0;
};

Scales ScalesOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
    case WeightType::kIQ4_XS:
      return {0, 1};
    case WeightType::kQ2_K:
      return {80, 2};
    case WeightType::kQ3_K:
      return {108, 1};
    case WeightType::kQ6_K:
      return {208, 1};
    default:
      return {0, 2};
  }
}

bool AnyScaleNotFinite(const TensorInfo& tensor) {
  const auto block_bytes = static_cast<size_t>(WeightBlock(tensor.type).bytes);
  const Scales scales = ScalesOf(tensor.type);
  bool bad = false;
  for (size_t at = 0; at < tensor.bytes; at += block_bytes) {
    bad |= kF16NotFinite(tensor.data + at + scales.offset, scales.count);
  }
  return bad;
}

bool NotFinite(const TensorInfo& tensor) {
  switch (tensor.type) {
    case WeightType::kF32:
      return kF32NotFinite(tensor.data, tensor.bytes / 4);
    case WeightType::kF16:
      return kF16NotFinite(tensor.data, tensor.bytes / 2);
    case WeightType::kBf16:
      return kBf16NotFinite(tensor.data, tensor.bytes / 2);
    default:
      return AnyScaleNotFinite(tensor);
  }
}

}  // namespace

std::vector<float> DecodeFloats(WeightType type, const std::byte* data, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    switch (type) {
      case WeightType::kF32:
        values[i] = Load<float>(data + i * 4);
        break;
      case WeightType::kF16:
        values[i] = HalfToFloat(Load<uint16_t>(data + i * 2));
        break;
      default:
        LYNX_CHECK(type == WeightType::kBf16);
        values[i] = ToFloat(Bf16{Load<uint16_t>(data + i * 2)});
    }
  }
  return values;
}

std::vector<float> DecodeVector(const TensorInfo& tensor) {
  std::vector<float> stored = DecodeFloats(tensor.type, tensor.data, tensor.shape[0]);
  if (tensor.row_order.empty()) return stored;
  std::vector<float> ordered(stored.size());
  for (size_t i = 0; i < ordered.size(); ++i) ordered[i] = stored[tensor.row_order[i]];
  return ordered;
}

absl::Status CheckFinite(const TensorInfo& tensor) {
  if (!NotFinite(tensor)) return absl::OkStatus();
  return FileError(tensor.file, "tensor " + tensor.label,
                   "holds a NaN or an infinity, want finite numbers");
}

}  // namespace lynx
