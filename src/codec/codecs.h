// SPDX-License-Identifier: Apache-2.0
// The codecs behind MakeCodec, one file each.
#pragma once

#include <memory>

#include "lynx/codec.h"

namespace lynx {

// "planes": the plane format on the back-end's kernels. Five planes, lossless.
std::unique_ptr<Codec> MakePlanesCodec(const Backend& backend);

// "bf16": the values as they are, token by token. 16 bits per element, lossless.
std::unique_ptr<Codec> MakeBf16Codec();

// "bf16-lossless": exponents entropy-coded, the other fields as they are. One plane, about 10.8
// bits per element of real caches, lossless.
std::unique_ptr<Codec> MakeBf16LosslessCodec();

// "int8": per token and head, as engines quantize their KV cache: BF16 scale absmax / 127, then
// round to nearest. 8 + 16 / head_dim bits per element (8.25 at head_dim 64).
std::unique_ptr<Codec> MakeInt8Codec();

// "int8-channel": BF16 scale absmax / 127 per channel and block of 64 tokens. 8.25 bits per
// element.
std::unique_ptr<Codec> MakeInt8ChannelCodec();

// "fp8": e4m3 per token and head: BF16 scale absmax / 448. 8 + 16 / head_dim bits per element.
std::unique_ptr<Codec> MakeFp8Codec();

// "int4": per token, groups of 64 channels (the weak baseline): BF16 scale absmax / 7, codes
// -7 .. 7. 4 + 16 / 64 bits per element (4.25 at head_dim 64 and 128, 5 at 16).
std::unique_ptr<Codec> MakeInt4Codec();

// "int4-kivi": keys per channel, values per token, groups of 32 with BF16 minimum and scale. 5 bits
// per element.
std::unique_ptr<Codec> MakeInt4KiviCodec();

// "cachegen": differences from every tenth token in 31 or 15 bins by depth, range-coded. About 4
// bits per element of real caches.
std::unique_ptr<Codec> MakeCachegenCodec();

// "paper": the Lynx paper's 4-bit anchor and 4-bit residual with log companding, repaired. Two
// planes of 4.625 and 4 bits per element in a full page. Protects no tokens.
std::unique_ptr<Codec> MakePaperCodec();

// One of the baselines, for a pool that is not in host memory.
std::unique_ptr<Codec> MakeStagedCodec(std::unique_ptr<Codec> codec, const Backend& backend);

}  // namespace lynx
