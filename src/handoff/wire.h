// SPDX-License-Identifier: Apache-2.0
// The bytes of a hand-off: the header of a chunk (bulk) and the control messages.
//
// All integers little-endian. Both start with u32 magic and u16 version; another version is
// refused, never guessed at. docs/protocol.md lists the messages in order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "codec/kv_page_codec.h"
#include "lynx/codec.h"
#include "lynx/device_chunks.h"
#include "lynx/kv_layout.h"
#include "lynx/status.h"
#include "lynx/types.h"

namespace lynx {

inline constexpr uint16_t kHandoffVersion = 4;

// Names everything both sides must agree on to read each other's chunks: plane codec, KV layout (of
// the whole model, however many ranks hold it), send plan, and whether stages are filled up. Peers
// with another value are refused.
uint64_t HandoffFormat(const Codec& codec, const SendPlan& plan, const KvLayout& layout);

// One stage of one page of one layer for a run of KV heads; the payload is KvPageCodec's. What the
// receiver can derive is written out too, and must be what it derives.
struct ChunkHeader {
  AttemptId attempt;    // fresh per try, so it also names the generation of the sequence's blocks
  uint64_t format = 0;  // HandoffFormat
  uint16_t layer = 0;
  uint16_t stage = 0;
  StageContents contents;    // which planes of which kinds
  uint16_t first_head = 0;   // multiple of num_heads
  uint16_t num_heads = 0;    // a divisor of the model's; the same in every chunk of the attempt
  uint32_t page = 0;         // 0 = the page that begins at the attempt's first_token
  uint32_t first_block = 0;  // of the page, counted in the sequence
  uint32_t num_blocks = 0;   // of the page
  uint32_t num_tokens = 0;   // of the page
  uint64_t bytes = 0;        // of the payload
  uint64_t checksum = 0;     // PayloadChecksum
  bool operator==(const ChunkHeader&) const = default;
};

// Sender → receiver, on Begin and then regularly: the attempt lives here.
struct Announce {
  AttemptId attempt;
  uint64_t format = 0;
  uint32_t first_token = 0;
  uint32_t num_tokens = 0;
  uint64_t num_posted_chunks = 0;  // so far
};
// Receiver → sender, in answer: and it lives here too.
struct Renew {
  AttemptId attempt;
};
// Receiver → sender: everything has arrived and is in place. The checksum is the sum (mod 2^64) of
// the chunks' checksums.
struct Delivered {
  AttemptId attempt;
  uint64_t num_chunks = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};
// Either way: the attempt is over on the side that says so.
struct Abort {
  AttemptId attempt;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
};
using ControlMessage = std::variant<Announce, Renew, Delivered, Abort>;

std::vector<std::byte> Serialize(const ChunkHeader& header);
std::vector<std::byte> Serialize(const ControlMessage& message);
// kDataLoss says what is wrong. Safe for arbitrary bytes.
absl::StatusOr<ChunkHeader> ParseChunkHeader(std::span<const std::byte> bytes);
absl::StatusOr<ControlMessage> ParseControlMessage(std::span<const std::byte> bytes);

// The sum (mod 2^64) of the xxHash64 of its pieces of kChecksumPieceBytes, seeded with their
// numbers: DeviceChunks::Checksums computes the same.
uint64_t PayloadChecksum(std::span<const std::byte> payload);
std::string ToString(const AttemptId& attempt);

}  // namespace lynx
