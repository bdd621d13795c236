// SPDX-License-Identifier: Apache-2.0
// File layout: magic, version, counts | metadata entries | tensor infos | padding | tensor data.
// A model in several files has its metadata in the first one.
#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "formats/file_error.h"
#include "formats/gguf_cursor.h"
#include "formats/mapped_file.h"
#include "formats/weight_type.h"

namespace lynx {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kOldestVersion = 2;  // the same layout; 3 only adds big-endian files
constexpr uint32_t kVersion = 3;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// Smallest possible entries, against which the counts of the header are checked.
constexpr uint64_t kMinMetadataBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 4 + 8;

constexpr char kSplitNumber[] = "split.no";
constexpr char kSplitCount[] = "split.count";
constexpr char kSplitTensors[] = "split.tensors.count";
constexpr int64_t kMaxNumParts = 65535;

// How the name of file `number` (from 0) of `count` ends: "-00001-of-00003.gguf".
std::string PartEnding(int64_t number, int64_t count) {
  return absl::StrCat("-", absl::Dec(number + 1, absl::kZeroPad5), "-of-",
                      absl::Dec(count, absl::kZeroPad5), ".gguf");
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
  // One file, whatever it says of others.
  static absl::StatusOr<std::unique_ptr<GgufFileImpl>> OpenPart(const std::string& path);
  // Takes the tensors of the other files of a model whose first file this is.
  absl::Status AddParts();

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

 private:
  absl::Status Read();
  absl::Status ReadHeader(GgufCursor& cursor);
  absl::Status ReadMetadata(GgufCursor& cursor);
  absl::Status ReadTensors(GgufCursor& cursor);
  absl::StatusOr<uint64_t> Alignment() const;
  // Fills everything but data; the offset is relative to the data section.
  absl::StatusOr<uint64_t> ReadTensorInfo(GgufCursor& cursor, GgufTensor& tensor) const;
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
  std::vector<std::unique_ptr<GgufFileImpl>> parts_;
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

absl::Status GgufFileImpl::ReadHeader(GgufCursor& cursor) {
  auto magic = cursor.Bytes(kMagic.size());
  if (!magic.ok()) return Error("magic", magic.status());
  if (*magic != kMagic) return Error("magic", "not a GGUF file");
  auto version = cursor.Scalar<uint32_t>();
  if (!version.ok()) return Error("version", version.status());
  if (*version == __builtin_bswap32(kVersion)) return Error("version", "big-endian file");
  if (*version < kOldestVersion || *version > kVersion) {
    return Error("version", absl::StrCat(*version, " is not supported, want ", kOldestVersion,
                                         " or ", kVersion));
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

absl::Status GgufFileImpl::ReadMetadata(GgufCursor& cursor) {
  for (uint64_t i = 0; i < num_metadata_; ++i) {
    auto key = cursor.String();
    if (!key.ok()) return Error(absl::StrCat("metadata key ", i), key.status());
    auto value = ReadGgufValue(cursor);
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

absl::StatusOr<uint64_t> GgufFileImpl::ReadTensorInfo(GgufCursor& cursor,
                                                      GgufTensor& tensor) const {
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

absl::Status GgufFileImpl::ReadTensors(GgufCursor& cursor) {
  LYNX_ASSIGN_OR_RETURN(uint64_t alignment, Alignment());
  std::vector<uint64_t> offsets;
  std::set<std::string_view> names;
  tensors_.reserve(num_tensors_);
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    auto name = cursor.String();
    if (!name.ok()) return Error(absl::StrCat("tensor name ", i), name.status());
    GgufTensor& tensor = tensors_.emplace_back();
    tensor.name = *std::move(name);
    tensor.file = path();
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
  GgufCursor cursor(file_->bytes());
  LYNX_RETURN_IF_ERROR(ReadHeader(cursor));
  LYNX_RETURN_IF_ERROR(ReadMetadata(cursor));
  return ReadTensors(cursor);
}

absl::StatusOr<std::unique_ptr<GgufFileImpl>> GgufFileImpl::OpenPart(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  auto part = std::make_unique<GgufFileImpl>(std::move(file));
  LYNX_RETURN_IF_ERROR(part->Read());
  return part;
}

absl::Status GgufFileImpl::AddParts() {
  if (Find(kSplitCount) == nullptr) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(const int64_t count, Int(kSplitCount, 0, kMaxNumParts));
  if (count <= 1) return absl::OkStatus();  // 0 marks files that were put together again
  const std::string ending = PartEnding(0, count);
  LYNX_ASSIGN_OR_RETURN(const int64_t number, Int(kSplitNumber, 0, count - 1));
  if (number != 0) {
    return Error(kSplitNumber, absl::StrCat("file ", number + 1, " of ", count,
                                            ": open the one that ends with ", ending));
  }
  if (!path().ends_with(ending)) {
    return Error(kSplitCount,
                 absl::StrCat(count, " files, but the name does not end with ", ending));
  }
  const std::string stem = path().substr(0, path().size() - ending.size());
  for (int64_t i = 1; i < count; ++i) {
    LYNX_ASSIGN_OR_RETURN(auto part, OpenPart(stem + PartEnding(i, count)));
    LYNX_RETURN_IF_ERROR(part->Int(kSplitNumber, i, i).status());
    LYNX_RETURN_IF_ERROR(part->Int(kSplitCount, count, count).status());
    std::ranges::move(part->tensors_, std::back_inserter(tensors_));
    parts_.push_back(std::move(part));
  }
  LYNX_ASSIGN_OR_RETURN(const int64_t wanted,
                        Int(kSplitTensors, 0, std::numeric_limits<int32_t>::max()));
  if (wanted == static_cast<int64_t>(tensors_.size())) return absl::OkStatus();
  return Error(kSplitTensors,
               absl::StrCat(wanted, " tensors, but the ", count, " files hold ", tensors_.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<GgufFileImpl> file, GgufFileImpl::OpenPart(path));
  LYNX_RETURN_IF_ERROR(file->AddParts());
  return file;
}

}  // namespace lynx
