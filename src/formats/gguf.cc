// SPDX-License-Identifier: Apache-2.0
// File layout: magic, version, counts | metadata entries | tensor infos | padding | tensor data.
#include "formats/gguf.h"

#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <type_traits>
#include <utility>

#include "formats/file_error.h"
#include "formats/mapped_file.h"
#include "formats/weight_type.h"

namespace lynx {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// Smallest possible entries, against which the counts of the header are checked.
constexpr uint64_t kMinMetadataBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 4 + 8;

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

// Reads little-endian values front to back; every error says where the file ended.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }

  absl::StatusOr<std::string_view> Bytes(uint64_t size) {
    if (size > remaining()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "truncated: ", size, " bytes wanted at offset ", offset_, ", ", remaining(), " left"));
    }
    std::string_view result(reinterpret_cast<const char*>(bytes_.data()) + offset_, size);
    offset_ += size;
    return result;
  }

  template <typename T>
  absl::StatusOr<T> Scalar() {
    LYNX_ASSIGN_OR_RETURN(std::string_view bytes, Bytes(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  absl::StatusOr<std::string> String() {
    LYNX_ASSIGN_OR_RETURN(uint64_t length, Scalar<uint64_t>());
    if (length > remaining()) {
      return absl::InvalidArgumentError(absl::StrCat("string length ", length, " at offset ",
                                                     offset_, " exceeds the ", remaining(),
                                                     " bytes left in the file (truncated?)"));
    }
    LYNX_ASSIGN_OR_RETURN(std::string_view bytes, Bytes(length));
    return std::string(bytes);
  }

 private:
  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
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
absl::StatusOr<GgufValue> ReadScalar(Cursor& cursor) {
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
absl::StatusOr<GgufValue> ReadNumbers(Cursor& cursor, uint64_t count) {
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

absl::StatusOr<GgufValue> ReadStrings(Cursor& cursor, uint64_t count) {
  std::vector<std::string> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    LYNX_ASSIGN_OR_RETURN(std::string value, cursor.String());
    values.push_back(std::move(value));
  }
  return GgufValue{std::move(values)};
}

absl::StatusOr<GgufValue> ReadArray(Cursor& cursor) {
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

absl::StatusOr<GgufValue> ReadValue(Cursor& cursor) {
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

const char* Kind(const GgufValue& value) {
  constexpr const char* kNames[] = {
      "a boolean", "an integer",          "an integer",           "a number",
      "a string",  "an array of strings", "an array of integers", "an array of numbers"};
  return kNames[value.value.index()];
}

class GgufFileImpl final : public GgufFile {
 public:
  explicit GgufFileImpl(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}

  const std::string& path() const override { return file_->path(); }
  const GgufValue* Find(std::string_view key) const override {
    const auto it = metadata_.find(key);
    return it == metadata_.end() ? nullptr : &it->second;
  }
  absl::StatusOr<std::string> String(std::string_view key) const override;
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const override;
  absl::StatusOr<double> Float(std::string_view key) const override;
  absl::StatusOr<const std::vector<std::string>*> Strings(std::string_view key) const override;
  absl::StatusOr<const std::vector<int64_t>*> Ints(std::string_view key) const override;
  const std::vector<GgufTensor>& tensors() const override { return tensors_; }

  absl::Status Read();

 private:
  absl::Status ReadHeader(Cursor& cursor);
  absl::Status ReadMetadata(Cursor& cursor);
  absl::Status ReadTensors(Cursor& cursor);
  absl::StatusOr<uint64_t> Alignment() const;
  // Fills everything but data; the offset is relative to the data section.
  absl::StatusOr<uint64_t> ReadTensorInfo(Cursor& cursor, GgufTensor& tensor) const;
  absl::Status PlaceTensor(uint64_t data_begin, uint64_t offset, uint64_t alignment,
                           GgufTensor& tensor) const;

  template <typename Reason>
  absl::Status Error(std::string_view field, const Reason& reason) const {
    return FileError(path(), field, reason);
  }
  // A value of one alternative of GgufValue, or the error that it is missing or of another kind.
  template <typename T>
  absl::StatusOr<const T*> Get(std::string_view key, const char* want) const;

  std::unique_ptr<MappedFile> file_;
  uint64_t num_tensors_ = 0;
  uint64_t num_metadata_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
};

template <typename T>
absl::StatusOr<const T*> GgufFileImpl::Get(std::string_view key, const char* want) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Error(key, "missing");
  if (const T* typed = std::get_if<T>(&value->value)) return typed;
  return Error(key, absl::StrCat("is ", Kind(*value), ", want ", want));
}

absl::StatusOr<std::string> GgufFileImpl::String(std::string_view key) const {
  LYNX_ASSIGN_OR_RETURN(const std::string* value, Get<std::string>(key, "a string"));
  return *value;
}

absl::StatusOr<const std::vector<std::string>*> GgufFileImpl::Strings(std::string_view key) const {
  return Get<std::vector<std::string>>(key, "an array of strings");
}

absl::StatusOr<const std::vector<int64_t>*> GgufFileImpl::Ints(std::string_view key) const {
  return Get<std::vector<int64_t>>(key, "an array of integers");
}

absl::StatusOr<int64_t> GgufFileImpl::Int(std::string_view key, int64_t min, int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Error(key, "missing");
  int64_t result = 0;
  if (const auto* wide = std::get_if<uint64_t>(&value->value)) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (*wide > kMax) return Error(key, absl::StrCat(*wide, " is not in ", min, "..", max));
    result = static_cast<int64_t>(*wide);
  } else if (const auto* narrow = std::get_if<int64_t>(&value->value)) {
    result = *narrow;
  } else {
    return Error(key, absl::StrCat("is ", Kind(*value), ", want an integer"));
  }
  if (result < min || result > max) {
    return Error(key, absl::StrCat(result, " is not in ", min, "..", max));
  }
  return result;
}

absl::StatusOr<double> GgufFileImpl::Float(std::string_view key) const {
  LYNX_ASSIGN_OR_RETURN(const double* value, Get<double>(key, "a number"));
  return *value;
}

absl::Status GgufFileImpl::ReadHeader(Cursor& cursor) {
  auto magic = cursor.Bytes(kMagic.size());
  if (!magic.ok()) return Error("magic", magic.status());
  if (*magic != kMagic) return Error("magic", "not a GGUF file");
  auto version = cursor.Scalar<uint32_t>();
  if (!version.ok()) return Error("version", version.status());
  if (*version == __builtin_bswap32(kVersion)) return Error("version", "big-endian file");
  if (*version != kVersion) {
    return Error("version", absl::StrCat(*version, " is not supported, want ", kVersion));
  }
  auto num_tensors = cursor.Scalar<uint64_t>();
  if (!num_tensors.ok()) return Error("tensor count", num_tensors.status());
  auto num_metadata = cursor.Scalar<uint64_t>();
  if (!num_metadata.ok()) return Error("metadata count", num_metadata.status());
  if (*num_metadata > cursor.remaining() / kMinMetadataBytes) {
    return Error("metadata count",
                 absl::StrCat(*num_metadata, " entries do not fit into the file (truncated?)"));
  }
  if (*num_tensors > cursor.remaining() / kMinTensorInfoBytes) {
    return Error("tensor count",
                 absl::StrCat(*num_tensors, " tensors do not fit into the file (truncated?)"));
  }
  num_tensors_ = *num_tensors;
  num_metadata_ = *num_metadata;
  return absl::OkStatus();
}

absl::Status GgufFileImpl::ReadMetadata(Cursor& cursor) {
  for (uint64_t i = 0; i < num_metadata_; ++i) {
    auto key = cursor.String();
    if (!key.ok()) return Error(absl::StrCat("metadata key ", i), key.status());
    auto value = ReadValue(cursor);
    if (!value.ok()) {
      return Error(absl::StrCat("metadata ", Printable(*key)), value.status());
    }
    if (!metadata_.emplace(*key, *std::move(value)).second) {
      return Error(absl::StrCat("metadata ", Printable(*key)), "duplicate key");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GgufFileImpl::Alignment() const {
  constexpr std::string_view kKey = "general.alignment";
  if (Find(kKey) == nullptr) return kDefaultAlignment;
  LYNX_ASSIGN_OR_RETURN(int64_t value, Int(kKey, kMinAlignment, kMaxAlignment));
  const auto alignment = static_cast<uint64_t>(value);
  if (!std::has_single_bit(alignment)) {
    return Error(kKey, absl::StrCat(alignment, " is not a power of two"));
  }
  return alignment;
}

absl::StatusOr<uint64_t> GgufFileImpl::ReadTensorInfo(Cursor& cursor, GgufTensor& tensor) const {
  LYNX_ASSIGN_OR_RETURN(uint32_t num_dimensions, cursor.Scalar<uint32_t>());
  if (num_dimensions == 0 || num_dimensions > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_dimensions, " dimensions, want 1..", kMaxDimensions));
  }
  tensor.shape.resize(num_dimensions);
  for (uint32_t d = 0; d < num_dimensions; ++d) {
    LYNX_ASSIGN_OR_RETURN(uint64_t extent, cursor.Scalar<uint64_t>());
    if (extent == 0 || extent > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", d, " is ", extent));
    }
    tensor.shape[num_dimensions - 1 - d] =
        static_cast<int64_t>(extent);  // the file: innermost first
  }
  LYNX_ASSIGN_OR_RETURN(uint32_t type, cursor.Scalar<uint32_t>());
  const auto known = WeightTypeFromGgml(type);
  if (!known)
    return absl::InvalidArgumentError(absl::StrCat(GgmlTypeText(type), " is not supported"));
  tensor.type = *known;

  const BlockShape block = WeightBlock(*known);
  if (tensor.shape.back() % block.elements != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("row of ", tensor.shape.back(), " elements is not a multiple of the ",
                     block.elements, "-element block of ", WeightTypeName(*known)));
  }
  uint64_t bytes = static_cast<uint64_t>(tensor.shape.back() / block.elements * block.bytes);
  for (size_t d = 0; d + 1 < tensor.shape.size(); ++d) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor.shape[d]), &bytes)) {
      return absl::InvalidArgumentError("the product of the dimensions overflows");
    }
  }
  tensor.bytes = bytes;
  return cursor.Scalar<uint64_t>();
}

absl::Status GgufFileImpl::PlaceTensor(uint64_t data_begin, uint64_t offset, uint64_t alignment,
                                       GgufTensor& tensor) const {
  const auto bytes = file_->bytes();
  if (offset % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data offset ", offset, " is not aligned to ", alignment));
  }
  const uint64_t room = data_begin < bytes.size() ? bytes.size() - data_begin : 0;
  if (offset > room || tensor.bytes > room - offset) {
    return absl::InvalidArgumentError(absl::StrCat("data (", tensor.bytes, " bytes at offset ",
                                                   offset, ") is beyond the end of the file (",
                                                   room, " bytes of data; truncated?)"));
  }
  tensor.data = bytes.data() + data_begin + offset;
  return absl::OkStatus();
}

absl::Status GgufFileImpl::ReadTensors(Cursor& cursor) {
  LYNX_ASSIGN_OR_RETURN(uint64_t alignment, Alignment());
  std::vector<uint64_t> offsets;
  std::set<std::string_view> names;
  tensors_.reserve(num_tensors_);
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    auto name = cursor.String();
    if (!name.ok()) return Error(absl::StrCat("tensor name ", i), name.status());
    GgufTensor& tensor = tensors_.emplace_back();
    tensor.name = *std::move(name);
    const std::string label = absl::StrCat("tensor ", Printable(tensor.name));
    if (!names.insert(tensor.name).second) return Error(label, "duplicate name");
    auto offset = ReadTensorInfo(cursor, tensor);
    if (!offset.ok()) return Error(label, offset.status());
    offsets.push_back(*offset);
  }
  const uint64_t data_begin = (cursor.offset() + alignment - 1) / alignment * alignment;
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    absl::Status placed = PlaceTensor(data_begin, offsets[i], alignment, tensors_[i]);
    if (!placed.ok()) {
      return Error(absl::StrCat("tensor ", Printable(tensors_[i].name)), placed);
    }
  }
  return absl::OkStatus();
}

absl::Status GgufFileImpl::Read() {
  Cursor cursor(file_->bytes());
  LYNX_RETURN_IF_ERROR(ReadHeader(cursor));
  LYNX_RETURN_IF_ERROR(ReadMetadata(cursor));
  return ReadTensors(cursor);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  auto gguf = std::make_unique<GgufFileImpl>(std::move(file));
  LYNX_RETURN_IF_ERROR(gguf->Read());
  return gguf;
}

}  // namespace lynx
