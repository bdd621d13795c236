// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_cursor.h"

#include <type_traits>
#include <utility>

namespace lynx {
namespace {

constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;

enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kEnd
};

size_t MinElementBytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
absl::StatusOr<GgufValue> ReadScalar(GgufCursor& cursor) {
  LYNX_ASSIGN_OR_RETURN(T value, cursor.Scalar<T>());
  if constexpr (std::is_floating_point_v<T>) {
    return GgufValue{static_cast<double>(value)};
  } else if constexpr (std::is_signed_v<T>) {
    return GgufValue{static_cast<int64_t>(value)};
  } else {
    return GgufValue{static_cast<uint64_t>(value)};
  }
}

template <typename T>
absl::StatusOr<GgufValue> ReadNumbers(GgufCursor& cursor, uint64_t count) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  LYNX_ASSIGN_OR_RETURN(std::string_view bytes, cursor.Bytes(count * sizeof(T)));
  std::vector<Wide> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<Wide>(value);
  }
  return GgufValue{std::move(values)};
}

absl::StatusOr<GgufValue> ReadStrings(GgufCursor& cursor, uint64_t count) {
  std::vector<std::string> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    LYNX_ASSIGN_OR_RETURN(std::string value, cursor.String());
    values.push_back(std::move(value));
  }
  return GgufValue{std::move(values)};
}

absl::StatusOr<GgufValue> ReadArray(GgufCursor& cursor) {
  LYNX_ASSIGN_OR_RETURN(uint32_t element, cursor.Scalar<uint32_t>());
  LYNX_ASSIGN_OR_RETURN(uint64_t count, cursor.Scalar<uint64_t>());
  const auto type = static_cast<ValueType>(element);
  if (element >= static_cast<uint32_t>(ValueType::kEnd) || type == ValueType::kArray) {
    return absl::InvalidArgumentError(absl::StrCat("array of unsupported element type ", element));
  }
  if (count > cursor.remaining() / MinElementBytes(type)) {
    return absl::InvalidArgumentError(absl::StrCat("array length ", count, " exceeds the ",
                                                   cursor.remaining(), " bytes left in the file"));
  }
  if (count > kMaxArrayElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("array length ", count, " is over the limit of ", kMaxArrayElements));
  }
  switch (type) {
    case ValueType::kU8:
      return ReadNumbers<uint8_t>(cursor, count);
    case ValueType::kI8:
      return ReadNumbers<int8_t>(cursor, count);
    case ValueType::kU16:
      return ReadNumbers<uint16_t>(cursor, count);
    case ValueType::kI16:
      return ReadNumbers<int16_t>(cursor, count);
    case ValueType::kU32:
      return ReadNumbers<uint32_t>(cursor, count);
    case ValueType::kI32:
      return ReadNumbers<int32_t>(cursor, count);
    case ValueType::kF32:
      return ReadNumbers<float>(cursor, count);
    case ValueType::kBool:
      return ReadNumbers<uint8_t>(cursor, count);
    case ValueType::kU64:
      return ReadNumbers<uint64_t>(cursor, count);
    case ValueType::kI64:
      return ReadNumbers<int64_t>(cursor, count);
    case ValueType::kF64:
      return ReadNumbers<double>(cursor, count);
    default:
      return ReadStrings(cursor, count);
  }
}

}  // namespace

absl::StatusOr<std::string_view> GgufCursor::Bytes(uint64_t size) {
  if (size > remaining()) {
    return absl::InvalidArgumentError(absl::StrCat("truncated: ", size, " bytes wanted at offset ",
                                                   offset_, ", ", remaining(), " left"));
  }
  std::string_view result(reinterpret_cast<const char*>(bytes_.data()) + offset_, size);
  offset_ += size;
  return result;
}

absl::StatusOr<std::string> GgufCursor::String() {
  LYNX_ASSIGN_OR_RETURN(uint64_t length, Scalar<uint64_t>());
  if (length > remaining()) {
    return absl::InvalidArgumentError(absl::StrCat("string length ", length, " at offset ", offset_,
                                                   " exceeds the ", remaining(),
                                                   " bytes left in the file (truncated?)"));
  }
  LYNX_ASSIGN_OR_RETURN(std::string_view bytes, Bytes(length));
  return std::string(bytes);
}

absl::StatusOr<GgufValue> ReadGgufValue(GgufCursor& cursor) {
  LYNX_ASSIGN_OR_RETURN(uint32_t number, cursor.Scalar<uint32_t>());
  switch (static_cast<ValueType>(number)) {
    case ValueType::kU8:
      return ReadScalar<uint8_t>(cursor);
    case ValueType::kI8:
      return ReadScalar<int8_t>(cursor);
    case ValueType::kU16:
      return ReadScalar<uint16_t>(cursor);
    case ValueType::kI16:
      return ReadScalar<int16_t>(cursor);
    case ValueType::kU32:
      return ReadScalar<uint32_t>(cursor);
    case ValueType::kI32:
      return ReadScalar<int32_t>(cursor);
    case ValueType::kF32:
      return ReadScalar<float>(cursor);
    case ValueType::kU64:
      return ReadScalar<uint64_t>(cursor);
    case ValueType::kI64:
      return ReadScalar<int64_t>(cursor);
    case ValueType::kF64:
      return ReadScalar<double>(cursor);
    case ValueType::kArray:
      return ReadArray(cursor);
    case ValueType::kBool: {
      LYNX_ASSIGN_OR_RETURN(uint8_t value, cursor.Scalar<uint8_t>());
      return GgufValue{value != 0};
    }
    case ValueType::kString: {
      LYNX_ASSIGN_OR_RETURN(std::string value, cursor.String());
      return GgufValue{std::move(value)};
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown value type ", number));
  }
}

}  // namespace lynx
