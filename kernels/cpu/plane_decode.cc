// SPDX-License-Identifier: Apache-2.0
// Planes into a page. Every size is checked against the shape, the metadata and the stream lengths
// before a kernel runs, so that arbitrary bytes are read inside their bounds.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/plane_page.h"

namespace lynx::cpu {
namespace {

class PageDecoder {
 public:
  PageDecoder(const PlaneBlockKernels& kernels, const PlaneDecodeParams& params)
      : kernels_(kernels), params_(params), layout_(params.shape) {}

  bool Run() {
    if (!CheckSizes() || !ReadPageMetadata()) return false;
    bool ok = true;
    for (int i = 0; i < layout_.num_blocks; ++i) ok = DecodeBlock(i) && ok;
    GetProtected();
    return ok;
  }

 private:
  KvKind kind() const { return params_.shape.kind; }
  int head_dim() const { return layout_.head_dim; }
  Bf16* tile(int i) const { return params_.tiles[layout_.first_block + i]; }
  Bf16* scratch() { return reinterpret_cast<Bf16*>(scratch_); }
  const uint8_t* low_codes(int i) const {
    return reinterpret_cast<const uint8_t*>(params_.planes[0]) + layout_.group_codes_offset() +
           static_cast<size_t>(i) * head_dim() * 2;
  }
  StreamWords Streams(int i) const {
    uint32_t packed;
    std::memcpy(&packed, params_.planes[kExactPlane] + i * sizeof(packed), sizeof(packed));
    return StreamWords::FromPacked(packed);
  }
  bool exact() const { return params_.num_planes > kExactPlane && layout_.num_blocks > 0; }

  bool CheckSizes() const;
  bool CheckGroupCodes(size_t* raw_bytes) const;
  bool CheckStreams() const;
  bool ReadPageMetadata();
  bool DecodeBlock(int i);
  void PutLiveTokens(int i);
  void GetRawGroups(int i);
  void GetProtected();

  const PlaneBlockKernels& kernels_;
  const PlaneDecodeParams& params_;
  const PlaneLayout layout_;
  size_t raw_at_ = 0;
  size_t stream_at_ = 0;
  float page_lo_[kMaxHeadDim];
  float unit_[kMaxHeadDim];
  float lo_[kMaxHeadDim];
  float step_[kMaxHeadDim];
  // A tile; bytes, because elements would be set to zero for every page.
  alignas(64) std::byte scratch_[kBlockSize * kMaxHeadDim * sizeof(Bf16)];
};

bool PageDecoder::CheckSizes() const {
  const auto& bytes = params_.plane_bytes;
  size_t raw_bytes = 0;
  if (bytes[0] < layout_.raw_offset() || !CheckGroupCodes(&raw_bytes)) return false;
  if (bytes[0] != layout_.raw_offset() + raw_bytes) return false;
  for (int p = 1; p < params_.num_planes && p < kExactPlane; ++p) {
    if (bytes[p] != layout_.code_plane_bytes(p)) return false;
  }
  if (params_.num_planes <= kExactPlane) return true;
  return layout_.num_blocks == 0 ? bytes[kExactPlane] == 0 : CheckStreams();
}

bool PageDecoder::CheckGroupCodes(size_t* raw_bytes) const {
  for (int i = 0; i < layout_.num_blocks; ++i) {
    const uint8_t* low = low_codes(i);
    const uint8_t* high = low + head_dim();
    int num_raw = 0;
    bool valid = true;
    for (int c = 0; c < head_dim(); ++c) {
      const bool raw = low[c] == kRawLowCode && high[c] == kRawHighCode;
      num_raw += raw;
      valid &= raw || low[c] <= high[c];
    }
    if (!valid) return false;
    const int num_live = layout_.block_live_end(i) - layout_.block_live_begin(i);
    *raw_bytes += static_cast<size_t>(num_raw) * num_live * sizeof(Bf16);
  }
  return true;
}

bool PageDecoder::CheckStreams() const {
  const size_t bytes = params_.plane_bytes[kExactPlane];
  size_t end = layout_.stream_offset() + PlaneLayout::kExactPadding;
  if (bytes < end) return false;
  for (int i = 0; i < layout_.num_blocks; ++i) {
    const size_t stream_bytes = Streams(i).bytes();
    if (stream_bytes > layout_.max_stream_bytes()) return false;
    end += stream_bytes;
  }
  return bytes == end;
}

// False when a low or range is not finite, or a range is negative.
bool PageDecoder::ReadPageMetadata() {
  if (layout_.num_blocks == 0) return true;
  constexpr uint16_t kInfinity = 0x7c00, kMagnitude = 0x7fff;
  uint16_t lo[kMaxHeadDim], range[kMaxHeadDim];
  std::memcpy(lo, params_.planes[0], head_dim() * sizeof(uint16_t));
  std::memcpy(range, params_.planes[0] + head_dim() * sizeof(uint16_t),
              head_dim() * sizeof(uint16_t));
  for (int c = 0; c < head_dim(); ++c) {
    if ((lo[c] & kMagnitude) >= kInfinity || range[c] >= kInfinity) return false;
    page_lo_[c] = HalfToFloat(lo[c]);
    unit_[c] = GroupUnit(range[c]);
  }
  return true;
}

bool PageDecoder::DecodeBlock(int i) {
  const uint8_t* low = low_codes(i);
  const uint8_t* high = low + head_dim();
  kernels_.group_bounds(head_dim(), page_lo_, unit_, low, high, lo_, step_);
  for (int c = 0; c < head_dim(); ++c) {
    if (low[c] > high[c]) lo_[c] = step_[c] = 0;
  }
  const int begin = layout_.block_live_begin(i), end = layout_.block_live_end(i);
  const bool whole = begin == 0 && end == kBlockSize;
  DecodeBlockParams block{.kind = kind(),
                          .head_dim = head_dim(),
                          .lo = lo_,
                          .step = step_,
                          .live_begin = begin,
                          .live_end = end,
                          .tile = whole ? tile(i) : scratch()};
  block.rows[0] = params_.planes[0] + layout_.codes_offset() + i * layout_.block_code_bytes(0);
  for (int p = 1; p < kExactPlane && p < params_.num_planes; ++p) {
    block.rows[p] = params_.planes[p] + i * layout_.block_code_bytes(p);
  }
  if (exact()) {
    block.stream = params_.planes[kExactPlane] + layout_.stream_offset() + stream_at_;
    block.stream_words = Streams(i);
    stream_at_ += block.stream_words.bytes();
  }
  const bool ok = kernels_.decode(block);
  if (!whole) PutLiveTokens(i);
  GetRawGroups(i);
  return ok;
}

// From the scratch tile.
void PageDecoder::PutLiveTokens(int i) {
  const int begin = layout_.block_live_begin(i), count = layout_.block_live_end(i) - begin;
  const bool key = kind() == KvKind::kKey;
  const int num_runs = key ? head_dim() : 1, run = key ? count : count * head_dim();
  for (int r = 0; r < num_runs; ++r) {
    const size_t e = TileElement(kind(), head_dim(), r, begin);
    std::copy_n(scratch() + e, run, tile(i) + e);
  }
}

void PageDecoder::GetRawGroups(int i) {
  const uint8_t* low = low_codes(i);
  const uint8_t* high = low + head_dim();
  const std::byte* raw = params_.planes[0] + layout_.raw_offset();
  for (int c = 0; c < head_dim(); ++c) {
    if (low[c] <= high[c]) continue;
    for (int t = layout_.block_live_begin(i); t < layout_.block_live_end(i); ++t) {
      std::memcpy(&tile(i)[TileElement(kind(), head_dim(), c, t)], raw + raw_at_, sizeof(Bf16));
      raw_at_ += sizeof(Bf16);
    }
  }
}

void PageDecoder::GetProtected() {
  const std::byte* in = params_.planes[0] + layout_.protected_offset();
  for (int t = 0; t < params_.shape.num_tokens; ++t) {
    if (t >= layout_.live_begin && t < layout_.live_end) continue;
    Bf16* tile = params_.tiles[t / kBlockSize];
    for (int c = 0; c < head_dim(); ++c) {
      std::memcpy(&tile[TileElement(kind(), head_dim(), c, t % kBlockSize)], in, sizeof(Bf16));
      in += sizeof(Bf16);
    }
  }
}

}  // namespace

void DecodePlanes(const PlaneBlockKernels& kernels, const PlaneDecodeParams& params) {
  *params.ok = PageDecoder(kernels, params).Run();
}

void CpuBackend::PlaneDecode(std::span<const PlaneDecodeParams> pages) const {
  for (const PlaneDecodeParams& params : pages) {
    DecodePlanes(PlaneBlockKernelsFor(options_.target), params);
    if (!*params.ok) ClearPage(params.shape, params.tiles);
  }
}

}  // namespace lynx::cpu
