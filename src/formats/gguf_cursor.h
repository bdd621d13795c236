// SPDX-License-Identifier: Apache-2.0
// Reads the header of a GGUF file front to back, never past the end.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "formats/gguf.h"
#include "lynx/status.h"

namespace lynx {

// Little-endian values one after the other; the bytes outlive it. Every error is kInvalidArgument
// and says what was wanted where; the caller adds file and field.
class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }

  absl::StatusOr<std::string_view> Bytes(uint64_t size);
  absl::StatusOr<std::string> String();
  template <typename T>
  absl::StatusOr<T> Scalar() {
    LYNX_ASSIGN_OR_RETURN(std::string_view bytes, Bytes(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
};

// A metadata value with its type before it.
absl::StatusOr<GgufValue> ReadGgufValue(GgufCursor& cursor);

}  // namespace lynx
