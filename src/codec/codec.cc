// SPDX-License-Identifier: Apache-2.0
#include "lynx/codec.h"

#include <string>

#include "codec/codecs.h"
#include "lynx/backend.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

struct NamedCodec {
  std::string_view name;
  std::unique_ptr<Codec> (*make)();
};
constexpr NamedCodec kBaselines[] = {{"bf16", MakeBf16Codec},
                                     {"bf16-lossless", MakeBf16LosslessCodec},
                                     {"int8", MakeInt8Codec},
                                     {"int8-channel", MakeInt8ChannelCodec},
                                     {"fp8", MakeFp8Codec},
                                     {"int4", MakeInt4Codec},
                                     {"int4-kivi", MakeInt4KiviCodec},
                                     {"cachegen", MakeCachegenCodec},
                                     {"paper", MakePaperCodec}};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kBaselines) + 1> names = {"planes"};
  for (size_t i = 0; i < std::size(kBaselines); ++i) names[i + 1] = kBaselines[i].name;
  return names;
}();

// Leading planes of the plane format that hold so many code bits.
constexpr int kPlanes2Bits = 1;
constexpr int kPlanes4Bits = 3;

}  // namespace

void Codec::EncodePages(std::span<const PageToEncode> pages) const {
  for (const PageToEncode& page : pages) Encode(page.shape, page.tiles, page.planes);
}

absl::Status Codec::DecodePages(std::span<const PageToDecode> pages, size_t* bad_page) const {
  for (size_t i = 0; i < pages.size(); ++i) {
    absl::Status status = Decode(pages[i].shape, pages[i].planes, pages[i].tiles);
    if (status.ok()) continue;
    *bad_page = i;
    return status;
  }
  return absl::OkStatus();
}

std::span<const std::string_view> CodecNames() { return kNames; }

absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(std::string_view name, const Backend& backend) {
  if (name == "planes") return MakePlanesCodec(backend);
  for (const NamedCodec& baseline : kBaselines) {
    if (name != baseline.name) continue;
    return backend.is_host() ? baseline.make() : MakeStagedCodec(baseline.make(), backend);
  }
  std::string known;
  for (const std::string_view n : CodecNames()) known.append(known.empty() ? "" : ", ").append(n);
  return absl::InvalidArgumentError(
      absl::StrCat("codec: unknown name \"", std::string(name), "\"; known are ", known));
}

SendPlan DefaultSendPlan(const Codec& codec, int num_layers, bool exact_target) {
  const int num_planes = static_cast<int>(codec.planes().size());
  const size_t num_tensors = static_cast<size_t>(num_layers) * 2;
  SendPlan plan;
  if (num_planes == kNumPlanes && codec.lossless()) {
    std::vector<int> anchor(num_tensors);
    for (size_t i = 0; i < num_tensors; ++i) {
      anchor[i] = i % 2 == size_t(KvKind::kKey) ? kPlanes4Bits : kPlanes2Bits;
    }
    plan.plane_end.push_back(std::move(anchor));
    plan.plane_end.emplace_back(num_tensors, kExactPlane);
    if (exact_target) plan.plane_end.emplace_back(num_tensors, kNumPlanes);
    return plan;
  }
  for (int p = 1; p <= num_planes; ++p) plan.plane_end.emplace_back(num_tensors, p);
  return plan;
}

}  // namespace lynx
