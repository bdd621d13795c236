// SPDX-License-Identifier: Apache-2.0
#include "handoff/wire.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"

namespace lynx {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is the memory's");

constexpr uint32_t kChunkMagic = 0x4b43584c;    // "LXCK"
constexpr uint32_t kControlMagic = 0x4343584c;  // "LXCC"
constexpr size_t kMaxAbortMessageBytes = 1024;

enum class Kind : uint16_t { kAnnounce = 1, kRenew = 2, kDelivered = 3, kAbort = 4 };

class Writer {
 public:
  template <typename T>
  Writer& Put(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    Append(&value, sizeof(T));
    return *this;
  }
  Writer& Put(const AttemptId& attempt) { return Put(attempt.hi).Put(attempt.lo); }
  Writer& Put(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    Append(text.data(), text.size());
    return *this;
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  void Append(const void* data, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    for (size_t i = 0; i < size; ++i) bytes_.push_back(bytes[i]);
  }

  std::vector<std::byte> bytes_;
};

// Reads past the end give zeros and make ok() false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  Reader& Get(T& value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    value = T{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return *this;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return *this;
  }
  Reader& Get(AttemptId& attempt) { return Get(attempt.hi).Get(attempt.lo); }
  Reader& Get(std::string& text) {
    uint32_t size = 0;
    Get(size);
    if (size > bytes_.size()) {
      ok_ = false;
      size = 0;
    }
    text.assign(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return *this;
  }
  // Everything was there and nothing is left over.
  bool complete() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

absl::Status CheckPreamble(Reader& reader, uint32_t want_magic, std::string_view what) {
  uint32_t magic = 0;
  uint16_t version = 0;
  reader.Get(magic).Get(version);
  if (magic != want_magic) {
    return absl::DataLossError(absl::StrFormat("%s: magic %#x, want %#x", what, magic, want_magic));
  }
  if (version != kHandoffVersion) {
    return absl::DataLossError(
        absl::StrFormat("%s: version %d, want %d", what, version, kHandoffVersion));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t HandoffFormat(const Codec& codec, const SendPlan& plan, const KvLayout& layout) {
  Writer w;
  w.Put(codec.name());
  for (const PlaneSpec& plane : codec.planes()) w.Put(plane.name);
  w.Put(int32_t{layout.num_layers}).Put(int32_t{layout.num_kv_heads}).Put(int32_t{layout.head_dim});
  w.Put(layout.dtype).Put(static_cast<uint8_t>(FillsUpStages(codec)));
  for (const std::vector<int>& ends : plan.plane_end) {
    w.Put(static_cast<uint32_t>(ends.size()));
    for (int end : ends) w.Put(int32_t{end});
  }
  return PayloadChecksum(w.Take());
}

std::vector<std::byte> Serialize(const ChunkHeader& h) {
  Writer w;
  w.Put(kChunkMagic).Put(kHandoffVersion).Put(h.attempt).Put(h.format).Put(h.layer).Put(h.stage);
  w.Put(h.contents.kinds);
  for (const PlaneRange& planes : h.contents.planes) w.Put(planes.begin).Put(planes.end);
  w.Put(h.first_head).Put(h.num_heads).Put(h.page).Put(h.first_block).Put(h.num_blocks);
  w.Put(h.num_tokens).Put(h.bytes).Put(h.checksum);
  return w.Take();
}

absl::StatusOr<ChunkHeader> ParseChunkHeader(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  LYNX_RETURN_IF_ERROR(CheckPreamble(reader, kChunkMagic, "chunk header"));
  ChunkHeader h;
  reader.Get(h.attempt).Get(h.format).Get(h.layer).Get(h.stage);
  reader.Get(h.contents.kinds);
  for (PlaneRange& planes : h.contents.planes) reader.Get(planes.begin).Get(planes.end);
  reader.Get(h.first_head).Get(h.num_heads).Get(h.page).Get(h.first_block).Get(h.num_blocks);
  reader.Get(h.num_tokens).Get(h.bytes).Get(h.checksum);
  if (!reader.complete()) {
    return absl::DataLossError(absl::StrCat("chunk header of ", bytes.size(), " bytes"));
  }
  return h;
}

std::vector<std::byte> Serialize(const ControlMessage& message) {
  Writer w;
  w.Put(kControlMagic).Put(kHandoffVersion);
  if (const auto* m = std::get_if<Announce>(&message)) {
    w.Put(Kind::kAnnounce).Put(m->attempt).Put(m->format);
    w.Put(m->first_token).Put(m->num_tokens).Put(m->num_posted_chunks);
  } else if (const auto* m = std::get_if<Renew>(&message)) {
    w.Put(Kind::kRenew).Put(m->attempt);
  } else if (const auto* m = std::get_if<Delivered>(&message)) {
    w.Put(Kind::kDelivered).Put(m->attempt).Put(m->num_chunks).Put(m->bytes).Put(m->checksum);
  } else {
    const Abort& abort = std::get<Abort>(message);
    w.Put(Kind::kAbort).Put(abort.attempt).Put(static_cast<int32_t>(abort.code));
    w.Put(std::string_view(abort.message).substr(0, kMaxAbortMessageBytes));
  }
  return w.Take();
}

absl::StatusOr<ControlMessage> ParseControlMessage(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  LYNX_RETURN_IF_ERROR(CheckPreamble(reader, kControlMagic, "hand-off control message"));
  Kind kind{};
  reader.Get(kind);
  ControlMessage message;
  switch (kind) {
    case Kind::kAnnounce: {
      Announce m;
      reader.Get(m.attempt).Get(m.format);
      reader.Get(m.first_token).Get(m.num_tokens).Get(m.num_posted_chunks);
      message = m;
      break;
    }
    case Kind::kRenew: {
      Renew m;
      reader.Get(m.attempt);
      message = m;
      break;
    }
    case Kind::kDelivered: {
      Delivered m;
      reader.Get(m.attempt).Get(m.num_chunks).Get(m.bytes).Get(m.checksum);
      message = m;
      break;
    }
    case Kind::kAbort: {
      Abort m;
      int32_t code = 0;
      reader.Get(m.attempt).Get(code).Get(m.message);
      // An unknown or OK code still means that the attempt is over.
      const bool known =
          code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
      m.code = known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
      message = std::move(m);
      break;
    }
    default:
      return absl::DataLossError(
          absl::StrCat("hand-off control message of unknown kind ", static_cast<int>(kind)));
  }
  if (!reader.complete()) {
    return absl::DataLossError(absl::StrCat("hand-off control message of kind ",
                                            static_cast<int>(kind), " with ", bytes.size(),
                                            " bytes"));
  }
  return message;
}

uint64_t PayloadChecksum(std::span<const std::byte> payload) {
  uint64_t sum = 0;
  for (uint64_t piece = 0; !payload.empty(); ++piece) {
    const size_t size = std::min(payload.size(), kChecksumPieceBytes);
    sum += XXH64(payload.data(), size, piece);
    payload = payload.subspan(size);
  }
  return sum;
}

std::string ToString(const AttemptId& attempt) {
  return absl::StrFormat("%016x%016x", attempt.hi, attempt.lo);
}

}  // namespace lynx
