// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "formats/file_error.h"
#include "formats/json_object.h"
#include "formats/weight_type.h"

namespace lynx {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDimensions = 8;

// A list of non-negative integers below 2^63.
absl::StatusOr<std::vector<int64_t>> ReadIntegers(const JsonObject& entry, const std::string& key,
                                                  size_t max_count) {
  if (!entry.Has(key)) return entry.Error(key, "missing");
  const auto& list = entry.json().at(key);
  if (!list.is_array() || list.size() > max_count) {
    return entry.Error(key, absl::StrCat("not a list of at most ", max_count, " integers"));
  }
  std::vector<int64_t> values;
  for (const auto& item : list) {
    if (!item.is_number_unsigned() ||
        item.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return entry.Error(key, "holds something that is not a non-negative integer");
    }
    values.push_back(static_cast<int64_t>(item.get<uint64_t>()));
  }
  return values;
}

absl::StatusOr<uint64_t> TensorBytes(const JsonObject& entry, const TensorInfo& tensor) {
  auto bytes = static_cast<uint64_t>(WeightBlock(tensor.type).bytes);
  for (int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
      return entry.Error("shape", "the product of the dimensions overflows");
    }
  }
  return bytes;
}

absl::StatusOr<TensorInfo> ReadTensor(const JsonObject& header, const std::string& name,
                                      std::span<const std::byte> data) {
  LYNX_ASSIGN_OR_RETURN(JsonObject entry, header.Object(name));
  TensorInfo tensor;
  tensor.name = tensor.label = name;
  LYNX_ASSIGN_OR_RETURN(std::string dtype, entry.String("dtype"));
  const auto type = WeightTypeFromSafetensors(dtype);
  if (!type) return entry.Error("dtype", absl::StrCat(Printable(dtype), " is not supported"));
  tensor.type = *type;
  LYNX_ASSIGN_OR_RETURN(tensor.shape, ReadIntegers(entry, "shape", kMaxDimensions));
  LYNX_ASSIGN_OR_RETURN(uint64_t bytes, TensorBytes(entry, tensor));
  LYNX_ASSIGN_OR_RETURN(auto offsets, ReadIntegers(entry, "data_offsets", 2));
  if (offsets.size() != 2) return entry.Error("data_offsets", "not two integers");
  const auto begin = static_cast<uint64_t>(offsets[0]);
  const auto end = static_cast<uint64_t>(offsets[1]);
  if (begin > end || end > data.size()) {
    return entry.Error("data_offsets", absl::StrCat("[", begin, ", ", end, "] is not a range in ",
                                                    data.size(), " bytes of data (truncated?)"));
  }
  if (end - begin != bytes) {
    return entry.Error("data_offsets",
                       absl::StrCat("cover ", end - begin, " bytes, the shape ", bytes));
  }
  tensor.data = data.data() + begin;
  tensor.bytes = bytes;
  return tensor;
}

}  // namespace

absl::StatusOr<std::vector<TensorInfo>> ReadSafetensors(const MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.size() < kLengthBytes) {
    return FileError(file.path(), "header",
                     absl::StrCat("truncated: the file has ", bytes.size(), " bytes"));
  }
  uint64_t length;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes || length > kMaxHeaderBytes) {
    return FileError(file.path(), "header",
                     absl::StrCat("length ", length, " does not fit into the file of ",
                                  bytes.size(), " bytes (limit ", kMaxHeaderBytes, ")"));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  auto header = JsonObject::Parse(text, file.path() + ": header");
  if (!header.ok()) return header.status();
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : header->json().items()) {
    if (name == "__metadata__") continue;
    auto tensor = ReadTensor(*header, name, bytes.subspan(kLengthBytes + length));
    if (!tensor.ok()) return tensor.status();
    tensor->file = file.path();
    tensors.push_back(*std::move(tensor));
  }
  std::ranges::sort(tensors, {}, &TensorInfo::data);
  return tensors;
}

}  // namespace lynx
