// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_page_codec.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "codec/tile_access.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr KvKind kKinds[] = {KvKind::kKey, KvKind::kValue};
constexpr size_t kLowHalfBytes = sizeof(uint16_t);

const char* KindName(KvKind kind) { return kind == KvKind::kKey ? "key" : "value"; }

// The upper halves of a float32 pool's tiles, in memory of their own.
class UpperHalves {
 public:
  explicit UpperHalves(const KvLayout& layout)
      : elements_(layout.tile_elements()), tiles_(elements_ * kPageBlocks) {}

  Bf16* tile(int block) { return tiles_.data() + block * elements_; }
  void Load(int block, const std::byte* pool_tile) {
    for (size_t e = 0; e < elements_; ++e) {
      std::memcpy(&tile(block)[e], pool_tile + e * sizeof(float) + kLowHalfBytes, sizeof(Bf16));
    }
  }

 private:
  size_t elements_;
  std::vector<Bf16> tiles_;
};

std::byte* Element(const PageShape& shape, std::byte* const* tiles, int channel, int token) {
  return tiles[token / kBlockSize] +
         TileElement(shape.kind, shape.head_dim, channel, token % kBlockSize) * sizeof(float);
}

void PutLowHalves(const PageShape& shape, std::byte* const* tiles, std::vector<std::byte>& stage) {
  size_t at = stage.size();
  stage.resize(at + static_cast<size_t>(shape.num_tokens) * shape.head_dim * kLowHalfBytes);
  for (int t = 0; t < shape.num_tokens; ++t) {
    for (int c = 0; c < shape.head_dim; ++c, at += kLowHalfBytes) {
      std::memcpy(&stage[at], Element(shape, tiles, c, t), kLowHalfBytes);
    }
  }
}

// Writes float32 elements from decoded upper halves and raw lower ones; without those, zeros.
void PutFloats(const PageShape& shape, UpperHalves& upper, const std::byte* low,
               std::byte* const* tiles) {
  for (int t = 0; t < shape.num_tokens; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) {
      std::byte* element = Element(shape, tiles, c, t);
      const size_t e = TileElement(shape.kind, shape.head_dim, c, t % kBlockSize);
      std::memset(element, 0, kLowHalfBytes);
      if (low != nullptr) {
        std::memcpy(element, low, kLowHalfBytes);
        low += kLowHalfBytes;
      }
      std::memcpy(element + kLowHalfBytes, &upper.tile(t / kBlockSize)[e], sizeof(Bf16));
    }
  }
}

}  // namespace

bool FillsUpStages(const Codec& codec) { return codec.device_chunks() != nullptr; }

absl::StatusOr<std::unique_ptr<KvPageCodec>> KvPageCodec::Create(const Codec& codec,
                                                                 const SendPlan& plan,
                                                                 const KvLayout& layout) {
  const std::string name(codec.name());
  if (layout.head_dim < 16 || layout.head_dim > kMaxHeadDim || layout.head_dim % 16 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("codec ", name, ": head_dim ", layout.head_dim,
                                                   " is not a multiple of 16 in 16..",
                                                   kMaxHeadDim));
  }
  const int num_planes = static_cast<int>(codec.planes().size());
  if (plan.num_stages() < 1 || plan.num_stages() > num_planes) {
    return absl::FailedPreconditionError(absl::StrCat("codec ", name, " has ", num_planes,
                                                      " planes, the send plan ", plan.num_stages(),
                                                      " stages"));
  }
  for (int s = 0; s < plan.num_stages(); ++s) {
    if (plan.plane_end[s].size() != static_cast<size_t>(layout.num_layers) * 2) {
      return absl::FailedPreconditionError(
          absl::StrCat("send plan: stage ", s, " covers ", plan.plane_end[s].size(),
                       " tensors, the cache has ", layout.num_layers * 2));
    }
    for (size_t i = 0; i < plan.plane_end[s].size(); ++i) {
      const int begin = s == 0 ? 0 : plan.plane_end[s - 1][i], end = plan.plane_end[s][i];
      if (end < std::max(begin, 1) || end > num_planes) {
        return absl::FailedPreconditionError(
            absl::StrCat("send plan: stage ", s, " of layer ", i / 2, " ", KindName(KvKind(i % 2)),
                         " ends at plane ", end, ", want ", std::max(begin, 1), "..", num_planes));
      }
    }
  }
  return std::unique_ptr<KvPageCodec>(new KvPageCodec(codec, plan, layout));
}

KvPageCodec::KvPageCodec(const Codec& codec, const SendPlan& plan, const KvLayout& layout)
    : codec_(codec), plan_(plan), layout_(layout), fills_up_(FillsUpStages(codec)) {
  const int num_planes = static_cast<int>(codec.planes().size());
  const auto& last = plan_.plane_end.back();
  lossless_ = codec.lossless() &&
              std::all_of(last.begin(), last.end(), [=](int end) { return end == num_planes; });
}

PageShape KvPageCodec::Shape(const KvPage& page, KvKind kind) const {
  PageShape shape{.kind = kind,
                  .head_dim = layout_.head_dim,
                  .num_tokens = page.num_tokens,
                  .layer = page.layer,
                  .num_layers = layout_.num_layers};
  if (codec_.planes().size() == 1) return shape;
  const int recent_begin = page.num_sequence_tokens - kNumRecentTokens - page.first_token;
  shape.num_protected_head = std::clamp(kNumSinkTokens - page.first_token, 0, page.num_tokens);
  shape.num_protected_tail =
      std::clamp(page.num_tokens - recent_begin, 0, page.num_tokens - shape.num_protected_head);
  return shape;
}

StageContents KvPageCodec::Contents(int layer, int stage) const {
  StageContents contents;
  for (const KvKind kind : kKinds) {
    const int begin = plan_.stage_begin(stage, layer, kind);
    const int end = plan_.stage_end(stage, layer, kind);
    contents.planes[size_t(kind)] = {static_cast<uint8_t>(begin), static_cast<uint8_t>(end)};
    if (begin < end) contents.kinds |= static_cast<uint8_t>(1u << int(kind));
  }
  return contents;
}

bool KvPageCodec::HasLowHalves(int stage) const {
  return layout_.dtype == KvDtype::kF32 && lossless_ && stage == num_stages() - 1;
}

KvPageCodec::PoolTiles KvPageCodec::Tiles(const KvPoolView& pool, const KvPage& page, KvKind kind,
                                          int head) const {
  PoolTiles tiles = {};
  for (int b = 0; b < page.num_blocks(); ++b) {
    tiles[b] = pool.tile(page.blocks[b], page.layer, kind, head);
  }
  return tiles;
}

struct KvPageCodec::Tensor {
  PageShape shape;
  int head = 0;
  PoolTiles pool_tiles = {};
  std::optional<UpperHalves> upper;  // of a float32 pool

  Bf16* tile(int block) {
    return upper ? upper->tile(block) : reinterpret_cast<Bf16*>(pool_tiles[block]);
  }
};

std::vector<KvPageCodec::Tensor> KvPageCodec::Tensors(const KvPoolView& pool,
                                                      const KvPage& page) const {
  std::vector<Tensor> tensors;
  for (const KvKind kind : kKinds) {
    for (int head = page.first_head; head < page.first_head + page.num_heads; ++head) {
      Tensor& tensor = tensors.emplace_back(Tensor{
          .shape = Shape(page, kind), .head = head, .pool_tiles = Tiles(pool, page, kind, head)});
      if (layout_.dtype == KvDtype::kF32) tensor.upper.emplace(layout_);
    }
  }
  return tensors;
}

template <typename Visit>
void KvPageCodec::ForEachPlane(int stage, std::span<const Tensor> tensors, Visit visit) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PageShape& shape = tensors[i].shape;
    const int end = plan_.stage_end(stage, shape.layer, shape.kind);
    for (int p = plan_.stage_begin(stage, shape.layer, shape.kind); p < end; ++p) visit(i, p);
  }
}

int KvPageCodec::NumPlanes(const KvPage& page, int stage) const {
  int count = 0;
  for (const PlaneRange& range : Contents(page.layer, stage).planes) {
    count += (range.end - range.begin) * page.num_heads;
  }
  return count;
}

// ---- encoding -----------------------------------------------------------------------------------

void KvPageCodec::EncodePage(const KvPoolView& pool, const KvPage& page,
                             std::span<std::vector<std::byte>> stages) const {
  LYNX_CHECK(static_cast<int>(stages.size()) == num_stages());
  std::vector<Tensor> tensors = Tensors(pool, page);
  const auto loan = encoded_.Borrow();
  std::vector<Planes>& planes = *loan;
  planes.resize(tensors.size(), Planes(codec_.planes().size()));
  std::vector<PageToEncode> pages(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i];
    for (std::vector<std::byte>& plane : planes[i]) plane.clear();
    pages[i] = {.shape = tensor.shape, .planes = planes[i]};
    for (int b = 0; b < page.num_blocks(); ++b) {
      if (tensor.upper) tensor.upper->Load(b, tensor.pool_tiles[b]);
      pages[i].tiles[b] = tensor.tile(b);
    }
  }
  codec_.EncodePages(pages);
  for (int s = 0; s < num_stages(); ++s) {
    const size_t table_bytes = TableBytes(NumPlanes(page, s));
    size_t size = table_bytes + (HasLowHalves(s) ? LowHalvesBytes(page) : 0);
    ForEachPlane(s, tensors, [&](size_t i, int p) { size += FilledUp(planes[i][p].size()); });
    std::vector<std::byte>& out = stages[s];
    out.clear();
    out.reserve(size);
    out.resize(table_bytes);
    size_t length_at = 0;
    ForEachPlane(s, tensors, [&](size_t i, int p) {
      const std::vector<std::byte>& plane = planes[i][p];
      const auto length = static_cast<uint32_t>(plane.size());
      std::memcpy(&out[length_at], &length, sizeof(length));
      length_at += sizeof(length);
      out.insert(out.end(), plane.begin(), plane.end());
      out.resize(FilledUp(out.size()));
    });
  }
  if (!HasLowHalves(num_stages() - 1)) return;
  for (const Tensor& tensor : tensors) {
    PutLowHalves(tensor.shape, tensor.pool_tiles.data(), stages.back());
  }
}

bool KvPageCodec::EncodePageOnDevice(const KvPoolView& pool, const KvPage& page,
                                     std::span<ChunkBytes> stages) const {
  LYNX_CHECK(static_cast<int>(stages.size()) == num_stages() && layout_.dtype == KvDtype::kBf16);
  DeviceChunks& device = *codec_.device_chunks();
  std::vector<Tensor> tensors = Tensors(pool, page);
  std::vector<PlaneEncodeParams> pages(tensors.size());
  std::vector<std::array<size_t, kNumPlanes>> plane_bytes(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    pages[i] = {.shape = tensors[i].shape, .plane_bytes = &plane_bytes[i]};
    for (int b = 0; b < page.num_blocks(); ++b) pages[i].tiles[b] = tensors[i].tile(b);
  }
  std::vector<std::vector<uint32_t>> lengths(stages.size());
  std::vector<DeviceChunks::Table> tables(stages.size());
  const auto place = [&] {
    for (int s = 0; s < num_stages(); ++s) {
      // The table, filled up.
      lengths[s].assign(TableBytes(NumPlanes(page, s)) / sizeof(uint32_t), 0);
      size_t size = lengths[s].size() * sizeof(uint32_t);
      ForEachPlane(s, tensors, [&, next = size_t{0}](size_t i, int p) mutable {
        lengths[s][next++] = static_cast<uint32_t>(plane_bytes[i][p]);
        size += FilledUp(plane_bytes[i][p]);
      });
      std::optional<ChunkBytes> chunk = ChunkBytes::OnDevice(device, size);
      if (!chunk) return false;
      stages[s] = *std::move(chunk);
      std::byte* at = stages[s].view().bytes.data();
      tables[s] = {at, std::as_bytes(std::span(lengths[s]))};
      at += tables[s].bytes.size();
      ForEachPlane(s, tensors, [&](size_t i, int p) {
        pages[i].planes[p] = at;
        at += FilledUp(plane_bytes[i][p]);
      });
    }
    return true;
  };
  return device.EncodePlanes(pages, tables, place);
}

// ---- decoding -----------------------------------------------------------------------------------

class KvPageCodec::StagePlanes {
 public:
  // False when the stage is shorter than its table.
  bool Open(const KvPageCodec& pages, const MemoryView& stage, size_t num_planes) {
    pages_ = &pages;
    const size_t table_bytes = pages.TableBytes(num_planes);
    if (stage.size() < table_bytes) return false;
    const size_t bytes = num_planes * sizeof(uint32_t);
    lengths_.resize(num_planes);
    if (stage.on_device()) {
      pages.codec_.device_chunks()->Copy(lengths_.data(), stage.bytes.data(), bytes);
    } else if (bytes > 0) {
      std::memcpy(lengths_.data(), stage.bytes.data(), bytes);
    }
    rest_ = stage.bytes.subspan(table_bytes);
    on_device_ = stage.on_device();
    return true;
  }
  // False when the stage ends before the next plane does.
  bool Take(std::span<const std::byte>* plane) {
    const size_t length = lengths_[next_++];
    const size_t filled_up = pages_->FilledUp(length);
    if (rest_.size() < filled_up) return false;
    *plane = rest_.first(length);
    rest_ = rest_.subspan(filled_up);
    return true;
  }
  bool on_device() const { return on_device_; }
  size_t bytes_left() const { return rest_.size(); }

 private:
  const KvPageCodec* pages_ = nullptr;
  std::vector<uint32_t> lengths_;
  size_t next_ = 0;
  std::span<const std::byte> rest_;
  bool on_device_ = false;
};

struct KvPageCodec::TensorPlanes {
  std::vector<std::span<const std::byte>> planes;
  std::array<bool, kNumPlanes> on_device = {};  // where the codec has device chunks
};

absl::Status KvPageCodec::DecodePage(const KvPage& page, std::span<const MemoryView> stage_prefix,
                                     const KvPoolView& pool) const {
  LYNX_CHECK(!stage_prefix.empty() && static_cast<int>(stage_prefix.size()) <= num_stages());
  std::vector<MemoryView> stages(stage_prefix.begin(), stage_prefix.end());
  LYNX_ASSIGN_OR_RETURN(const std::span<const std::byte> low_halves, TakeLowHalves(page, stages));
  LYNX_ASSIGN_OR_RETURN(std::vector<StagePlanes> rest, OpenStages(page, stages));
  std::vector<Tensor> tensors = Tensors(pool, page);
  std::vector<TensorPlanes> planes(tensors.size());
  std::vector<PageToDecode> pages(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(planes[i], TakePlanes(tensors[i], rest));
    pages[i] = {.shape = tensors[i].shape, .planes = planes[i].planes};
    if (codec_.device_chunks() != nullptr) pages[i].on_device = planes[i].on_device;
    for (int b = 0; b < page.num_blocks(); ++b) pages[i].tiles[b] = tensors[i].tile(b);
  }
  for (size_t s = 0; s < rest.size(); ++s) {
    if (rest[s].bytes_left() > 0) {
      return absl::DataLossError(absl::StrCat("stage ", s, " of layer ", page.layer, ": ",
                                              rest[s].bytes_left(), " bytes too many"));
    }
  }
  size_t bad = 0;
  if (absl::Status status = codec_.DecodePages(pages, &bad); !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("layer ", page.layer, " ", KindName(tensors[bad].shape.kind), " head ",
                     tensors[bad].head, ": ", std::string(status.message())));
  }
  const std::byte* low = low_halves.data();
  for (Tensor& tensor : tensors) {
    if (!tensor.upper) break;
    PutFloats(tensor.shape, *tensor.upper, low, tensor.pool_tiles.data());
    if (low != nullptr) {
      low += static_cast<size_t>(page.num_tokens) * layout_.head_dim * kLowHalfBytes;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> KvPageCodec::TakeLowHalves(
    const KvPage& page, std::vector<MemoryView>& stages) const {
  const int last = static_cast<int>(stages.size()) - 1;
  if (!HasLowHalves(last)) return std::span<const std::byte>();
  const size_t bytes = LowHalvesBytes(page);
  std::span<const std::byte>& stage = stages[last].bytes;
  if (stage.size() < bytes) {
    return absl::DataLossError(absl::StrCat("stage ", last, " of layer ", page.layer, ": ",
                                            stage.size(), " bytes, want at least ", bytes));
  }
  const auto low = stage.last(bytes);
  stage = stage.first(stage.size() - bytes);
  return low;
}

absl::StatusOr<std::vector<KvPageCodec::StagePlanes>> KvPageCodec::OpenStages(
    const KvPage& page, std::span<const MemoryView> stages) const {
  std::vector<StagePlanes> opened(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    const int num_planes = NumPlanes(page, static_cast<int>(s));
    if (opened[s].Open(*this, stages[s], num_planes)) continue;
    return absl::DataLossError(absl::StrCat("stage ", s, " of layer ", page.layer, ": ",
                                            stages[s].size(), " bytes, want at least ",
                                            TableBytes(num_planes)));
  }
  return opened;
}

// The tensor's planes, off the front of each stage.
absl::StatusOr<KvPageCodec::TensorPlanes> KvPageCodec::TakePlanes(
    const Tensor& tensor, std::vector<StagePlanes>& stages) const {
  TensorPlanes taken;
  absl::Status status;
  for (size_t s = 0; s < stages.size(); ++s) {
    ForEachPlane(static_cast<int>(s), {&tensor, 1}, [&](size_t, int p) {
      taken.on_device[p] = stages[s].on_device();
      if (!status.ok() || stages[s].Take(&taken.planes.emplace_back())) return;
      status = absl::DataLossError(absl::StrCat("stage ", s, " of layer ", tensor.shape.layer, " ",
                                                KindName(tensor.shape.kind), " head ", tensor.head,
                                                ": ends inside plane ", p));
    });
  }
  LYNX_RETURN_IF_ERROR(status);
  return taken;
}

size_t KvPageCodec::LowHalvesBytes(const KvPage& page) const {
  return size_t{2} * page.num_heads * page.num_tokens * layout_.head_dim * kLowHalfBytes;
}

size_t KvPageCodec::MaxStageBytes(const KvPage& page, int stage) const {
  size_t bytes = HasLowHalves(stage) ? LowHalvesBytes(page) : 0;
  bytes += TableBytes(NumPlanes(page, stage));
  for (const KvKind kind : kKinds) {
    const PageShape shape = Shape(page, kind);
    const int end = plan_.stage_end(stage, page.layer, kind);
    for (int p = plan_.stage_begin(stage, page.layer, kind); p < end; ++p) {
      bytes += page.num_heads * FilledUp(codec_.MaxPlaneBytes(shape, p));
    }
  }
  return bytes;
}

}  // namespace lynx
