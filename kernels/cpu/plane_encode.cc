// SPDX-License-Identifier: Apache-2.0
// A page into planes, in three passes over its live blocks: the range of every group; page and
// group metadata; codes and exact bits.
//
// The vector kernels want whole blocks of ordinary numbers. So a block at the edge of the live
// tokens is copied with its other slots repeating the first live token, which changes no range and
// gives codes that decoders ignore; and raw groups are copied as zeros.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/plane_page.h"

namespace lynx::cpu {
namespace {

class PageEncoder {
 public:
  PageEncoder(const PlaneBlockKernels& kernels, const PlaneEncodeParams& params)
      : kernels_(kernels), params_(params), layout_(params.shape) {}

  void Run() {
    for (int i = 0; i < layout_.num_blocks; ++i) {
      kernels_.key_range(kind(), head_dim(), LiveTile(i), min_key_[i], max_key_[i]);
    }
    if (layout_.num_blocks > 0) PutPageMetadata();
    for (int i = 0; i < layout_.num_blocks; ++i) EncodeBlock(i);
    FinishPlanes();
  }

 private:
  KvKind kind() const { return params_.shape.kind; }
  int head_dim() const { return layout_.head_dim; }
  const Bf16* tile(int i) const { return params_.tiles[layout_.first_block + i]; }
  Bf16* scratch() { return reinterpret_cast<Bf16*>(scratch_); }
  Bf16 At(const Bf16* tile, int channel, int token) const {
    return tile[TileElement(kind(), head_dim(), channel, token)];
  }

  const Bf16* LiveTile(int i);
  void PutPageMetadata();
  void EncodeBlock(int i);
  const Bf16* WithoutRawGroups(int i, const Bf16* tile, const uint8_t* low, const uint8_t* high);
  void PutRawGroup(int i, const Bf16* tile, int channel);
  void PutProtected();
  void FinishPlanes();

  const PlaneBlockKernels& kernels_;
  const PlaneEncodeParams& params_;
  const PlaneLayout layout_;
  size_t num_raw_bytes_ = 0;
  size_t num_stream_bytes_ = 0;
  int16_t min_key_[kPageBlocks][kMaxHeadDim];
  int16_t max_key_[kPageBlocks][kMaxHeadDim];
  float page_lo_[kMaxHeadDim];
  float unit_[kMaxHeadDim];
  float lo_[kMaxHeadDim];
  float step_[kMaxHeadDim];
  // A tile; bytes, because elements would be set to zero for every page.
  alignas(64) std::byte scratch_[kBlockSize * kMaxHeadDim * sizeof(Bf16)];
};

const Bf16* PageEncoder::LiveTile(int i) {
  const int begin = layout_.block_live_begin(i), end = layout_.block_live_end(i);
  if (begin == 0 && end == kBlockSize) return tile(i);
  const bool key = kind() == KvKind::kKey;
  Bf16* copy = scratch();
  std::copy_n(tile(i), kBlockSize * head_dim(), copy);
  for (int c = 0; key && c < head_dim(); ++c) {
    Bf16* group = copy + c * kBlockSize;
    std::fill_n(group, begin, group[begin]);
    std::fill_n(group + end, kBlockSize - end, group[begin]);
  }
  for (int t = 0; !key && t < kBlockSize; ++t) {
    if (t >= begin && t < end) continue;
    std::copy_n(copy + begin * head_dim(), head_dim(), copy + t * head_dim());
  }
  return copy;
}

void PageEncoder::PutPageMetadata() {
  uint16_t lo[kMaxHeadDim], range[kMaxHeadDim];
  kernels_.page_ranges({.head_dim = head_dim(),
                        .num_blocks = layout_.num_blocks,
                        .min_key = min_key_,
                        .max_key = max_key_,
                        .lo = lo,
                        .range = range,
                        .page_lo = page_lo_,
                        .unit = unit_});
  const size_t bytes = head_dim() * sizeof(uint16_t);
  std::memcpy(params_.planes[0], lo, bytes);
  std::memcpy(params_.planes[0] + bytes, range, bytes);
}

void PageEncoder::PutRawGroup(int i, const Bf16* tile, int channel) {
  std::byte* out = params_.planes[0] + layout_.raw_offset() + num_raw_bytes_;
  for (int t = layout_.block_live_begin(i); t < layout_.block_live_end(i); ++t) {
    const Bf16 v = At(tile, channel, t);
    std::memcpy(out, &v, sizeof(v));
    out += sizeof(v);
    num_raw_bytes_ += sizeof(v);
  }
}

// Sends the raw groups of block i and returns its tile with zeros in their place.
const Bf16* PageEncoder::WithoutRawGroups(int i, const Bf16* tile, const uint8_t* low,
                                          const uint8_t* high) {
  Bf16* copy = scratch();
  if (tile != copy) std::copy_n(tile, kBlockSize * head_dim(), copy);
  for (int c = 0; c < head_dim(); ++c) {
    if (low[c] <= high[c]) continue;
    PutRawGroup(i, copy, c);
    for (int t = 0; t < kBlockSize; ++t) copy[TileElement(kind(), head_dim(), c, t)] = Bf16{};
  }
  return copy;
}

void PageEncoder::EncodeBlock(int i) {
  auto* low = reinterpret_cast<uint8_t*>(params_.planes[0]) + layout_.group_codes_offset() +
              static_cast<size_t>(i) * head_dim() * 2;
  uint8_t* high = low + head_dim();
  kernels_.group_codes({.head_dim = head_dim(),
                        .page_lo = page_lo_,
                        .unit = unit_,
                        .min_key = min_key_[i],
                        .max_key = max_key_[i],
                        .low = low,
                        .high = high});
  kernels_.group_bounds(head_dim(), page_lo_, unit_, low, high, lo_, step_);
  int num_raw = 0;
  for (int c = 0; c < head_dim(); ++c) num_raw += IsRawGroup(min_key_[i][c], max_key_[i][c]);
  for (int c = 0; num_raw > 0 && c < head_dim(); ++c) {
    if (!IsRawGroup(min_key_[i][c], max_key_[i][c])) continue;
    low[c] = kRawLowCode;
    high[c] = kRawHighCode;
    lo_[c] = step_[c] = 0;
  }
  const Bf16* tile = LiveTile(i);
  if (num_raw > 0) tile = WithoutRawGroups(i, tile, low, high);

  EncodeBlockParams block{.kind = kind(),
                          .head_dim = head_dim(),
                          .tile = tile,
                          .lo = lo_,
                          .step = step_,
                          .live_begin = layout_.block_live_begin(i),
                          .live_end = layout_.block_live_end(i)};
  block.rows[0] = params_.planes[0] + layout_.codes_offset() + i * layout_.block_code_bytes(0);
  for (int p = 1; p < kExactPlane; ++p) {
    block.rows[p] = params_.planes[p] + i * layout_.block_code_bytes(p);
  }
  std::byte* exact = params_.planes[kExactPlane];
  if (exact != nullptr) block.stream = exact + layout_.stream_offset() + num_stream_bytes_;
  const StreamWords words = kernels_.encode(block);
  const uint32_t packed = words.packed();
  if (exact != nullptr) std::memcpy(exact + i * sizeof(packed), &packed, sizeof(packed));
  num_stream_bytes_ += words.bytes();
}

void PageEncoder::PutProtected() {
  std::byte* out = params_.planes[0] + layout_.protected_offset();
  const size_t bytes = head_dim() * sizeof(Bf16);
  for (int t = 0; t < params_.shape.num_tokens; ++t) {
    if (t >= layout_.live_begin && t < layout_.live_end) continue;
    const Bf16* tile = params_.tiles[t / kBlockSize];
    Bf16 token[kMaxHeadDim];
    for (int c = 0; c < head_dim(); ++c) token[c] = At(tile, c, t % kBlockSize);
    std::memcpy(out, token, bytes);
    out += bytes;
  }
}

void PageEncoder::FinishPlanes() {
  PutProtected();
  auto& bytes = *params_.plane_bytes;
  bytes[0] = layout_.raw_offset() + num_raw_bytes_;
  for (int p = 1; p < kExactPlane; ++p) bytes[p] = layout_.code_plane_bytes(p);
  bytes[kExactPlane] = 0;
  std::byte* exact = params_.planes[kExactPlane];
  if (exact == nullptr || layout_.num_blocks == 0) return;
  const size_t end = layout_.stream_offset() + num_stream_bytes_;
  std::memset(exact + end, 0, PlaneLayout::kExactPadding);
  bytes[kExactPlane] = end + PlaneLayout::kExactPadding;
}

}  // namespace

void EncodePlanes(const PlaneBlockKernels& kernels, const PlaneEncodeParams& params) {
  PageEncoder(kernels, params).Run();
}

void CpuBackend::PlaneEncode(std::span<const PlaneEncodeParams> pages) const {
  for (const PlaneEncodeParams& params : pages) {
    EncodePlanes(PlaneBlockKernelsFor(options_.target), params);
  }
}

}  // namespace lynx::cpu
