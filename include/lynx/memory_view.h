// SPDX-License-Identifier: Apache-2.0
// Bytes, and whose memory they lie in.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lynx {

enum class MemoryType : uint8_t { kHost, kDevice };

// Not owned. Bytes of a device are never followed by the host (lynx/device_chunks.h moves them).
template <typename Byte>
struct BasicMemoryView {
  std::span<Byte> bytes;
  MemoryType memory = MemoryType::kHost;

  BasicMemoryView() = default;
  template <std::convertible_to<std::span<Byte>> Range>
  BasicMemoryView(Range&& range, MemoryType memory = MemoryType::kHost)  // NOLINT: as spans do
      : bytes(range), memory(memory) {}
  template <std::convertible_to<Byte> Other>
  BasicMemoryView(const BasicMemoryView<Other>& other)  // NOLINT: adds const
      : bytes(other.bytes), memory(other.memory) {}

  size_t size() const { return bytes.size(); }
  bool on_device() const { return memory == MemoryType::kDevice; }
};
using MemoryView = BasicMemoryView<const std::byte>;
using MutableMemoryView = BasicMemoryView<std::byte>;

}  // namespace lynx
