// SPDX-License-Identifier: Apache-2.0
// A range coder with static tables, in the form of rANS (Duda, arXiv 1311.2540): a symbol costs
// kRangeBits - log2(frequency) bits, to within a thousandth.
//
// The state is in [2^23, 2^31) and moves bytes in and out at its low end. The encoder works from
// the last symbol to the first, so that the decoder goes forward. Stream: the state as u32
// (little-endian), then the bytes that the decoder takes in, in its order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lynx {

inline constexpr int kRangeBits = 12;
inline constexpr uint32_t kRangeTotal = 1u << kRangeBits;  // the sum of a table's frequencies

// A symbol's place in [0, kRangeTotal): [begin, begin + frequency).
struct SymbolRange {
  uint32_t begin = 0;
  uint32_t frequency = 0;
};

inline constexpr uint32_t kLeastCoderState = 1u << 23;

class RangeEncoder {
 public:
  // The symbol before the ones put so far. frequency > 0.
  void Put(SymbolRange symbol) {
    const uint32_t limit = (kLeastCoderState >> kRangeBits << 8) * symbol.frequency;
    for (; state_ >= limit; state_ >>= 8) bytes_.push_back(std::byte(state_ & 0xff));
    state_ = (state_ / symbol.frequency << kRangeBits) + state_ % symbol.frequency + symbol.begin;
  }
  // Appends the stream.
  void Finish(std::vector<std::byte>& out) {
    for (int shift = 0; shift < 32; shift += 8) out.push_back(std::byte(state_ >> shift & 0xff));
    out.insert(out.end(), bytes_.rbegin(), bytes_.rend());
  }
  // More than any stream of so many symbols has.
  static constexpr size_t MaxBytes(size_t num_symbols) {
    return num_symbols * kRangeBits / 8 + num_symbols / 256 + 2 * sizeof(uint32_t);
  }

 private:
  uint32_t state_ = kLeastCoderState;
  std::vector<std::byte> bytes_;  // the last first
};

// Reads any bytes safely.
class RangeDecoder {
 public:
  explicit RangeDecoder(std::span<const std::byte> stream) : stream_(stream) {
    for (int shift = 0; shift < 32 && !stream_.empty(); shift += 8) {
      state_ |= std::to_integer<uint32_t>(stream_[0]) << shift;
      stream_ = stream_.subspan(1);
    }
  }
  // Where the next symbol's range is hit: in [0, kRangeTotal).
  uint32_t slot() const { return state_ & (kRangeTotal - 1); }
  // Takes the symbol whose range holds slot(). False when the stream has ended too early.
  bool Take(SymbolRange symbol) {
    state_ = symbol.frequency * (state_ >> kRangeBits) + slot() - symbol.begin;
    for (; state_ < kLeastCoderState; stream_ = stream_.subspan(1)) {
      if (stream_.empty()) return false;
      state_ = state_ << 8 | std::to_integer<uint32_t>(stream_[0]);
    }
    return true;
  }
  // True when all symbols of a whole stream have been taken.
  bool AtEnd() const { return stream_.empty() && state_ == kLeastCoderState; }

 private:
  std::span<const std::byte> stream_;
  uint32_t state_ = 0;
};

}  // namespace lynx
