// SPDX-License-Identifier: Apache-2.0
// Owns the bytes of a chunk, which lie in the host's memory or in a device's.
//
// Copies are the same bytes. They are shared because a transport may still move them when the
// attempt they belong to has ended.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lynx/device_chunks.h"
#include "lynx/memory_view.h"

namespace lynx {

class ChunkBytes {
 public:
  ChunkBytes() = default;
  explicit ChunkBytes(std::vector<std::byte> bytes) {
    auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
    view_ = *owner;
    owner_ = std::move(owner);
  }

  // Contents undefined.
  static ChunkBytes OnHost(size_t size) {
    auto owner = std::make_shared_for_overwrite<std::byte[]>(size);
    const std::span<std::byte> bytes(owner.get(), size);
    return {std::move(owner), bytes};
  }
  // Nothing when there is no room. The device outlives the bytes.
  static std::optional<ChunkBytes> OnDevice(DeviceChunks& device, size_t size) {
    std::byte* chunk = device.Allocate(size);
    if (chunk == nullptr) return std::nullopt;
    std::shared_ptr<std::byte> owner(chunk, [&device](std::byte* c) { device.Free(c); });
    return ChunkBytes(std::move(owner), {std::span(chunk, size), MemoryType::kDevice});
  }

  const MutableMemoryView& view() const { return view_; }
  size_t size() const { return view_.size(); }

 private:
  ChunkBytes(std::shared_ptr<const void> owner, MutableMemoryView view)
      : owner_(std::move(owner)), view_(view) {}

  std::shared_ptr<const void> owner_;
  MutableMemoryView view_;
};

}  // namespace lynx
