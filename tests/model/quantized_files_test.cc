// SPDX-License-Identifier: Apache-2.0
// A GGUF file of each block format against the same model with its weights decoded: in float32
// arithmetic they are one model, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "formats/weight_type.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/formats/file_builders.h"
#include "tests/kernels_cpu/random_matrix.h"
#include "tests/model/sequence_runner.h"

namespace lynx {
namespace {

constexpr int kHidden = 256, kInner = 512, kVocab = 11;

uint32_t GgmlNumber(WeightType type) {
  uint32_t number = 0;
  while (WeightTypeFromGgml(number) != type) ++number;
  return number;
}

// A llama of one layer with a tied head, its matrices random ones of a format, stored in it or as
// F32.
GgufBuilder RandomLlama(WeightType format, bool decode) {
  GgufBuilder b;
  b.Text("general.architecture", "llama")
      .U32("llama.block_count", 1)
      .U32("llama.embedding_length", kHidden)
      .U32("llama.feed_forward_length", kInner)
      .U32("llama.attention.head_count", 4)
      .U32("llama.attention.head_count_kv", 2)
      .U32("llama.context_length", 64)
      .Texts("tokenizer.ggml.tokens", std::vector<std::string>(kVocab, "a"));
  uint32_t seed = 0;
  const auto matrix = [&](const std::string& name, int n, int k) {
    const cpu::Matrix stored(format, n, k, ++seed);
    std::string bytes;
    if (decode) {
      for (int i = 0; i < n; ++i) {
        for (float value : stored.Row(i)) bytes += Raw(value);
      }
    } else {
      const WeightView& view = stored.view();
      bytes.assign(reinterpret_cast<const char*>(view.data), n * view.row_bytes);
    }
    b.Tensor(name, {uint64_t(k), uint64_t(n)}, decode ? 0 : GgmlNumber(format), 0, bytes);
  };
  const auto norm = [&](const std::string& name) {
    std::string ones;
    for (int i = 0; i < kHidden; ++i) ones += Raw(1.0f);
    b.Tensor(name, {kHidden}, 0, 0, ones);
  };
  matrix("token_embd.weight", kVocab, kHidden);
  matrix("blk.0.attn_q.weight", kHidden, kHidden);
  matrix("blk.0.attn_k.weight", kHidden / 2, kHidden);
  matrix("blk.0.attn_v.weight", kHidden / 2, kHidden);
  matrix("blk.0.attn_output.weight", kHidden, kHidden);
  matrix("blk.0.ffn_gate.weight", kInner, kHidden);
  matrix("blk.0.ffn_up.weight", kInner, kHidden);
  matrix("blk.0.ffn_down.weight", kHidden, kInner);
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"})
    norm(name);
  return b;
}

std::vector<float> Logits(const GgufBuilder& builder, Compute compute) {
  const TempDirectory directory;
  const auto backend = cpu::CpuBackend::Create({.compute = compute});
  auto model = Model::Load(directory.Write("model.gguf", builder.Bytes()), *backend, 16);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  SequenceRunner runner(**model, 1);
  const std::vector<TokenId> tokens = {3, 10, 0, 7, 3};
  TestSequence sequence = runner.NewSequence(5);
  return runner.Feed(sequence, tokens, 16, SequenceRunner::Rows::kAll);
}

TEST(QuantizedFilesTest, AreTheirDecodedWeights) {
  for (WeightType type : cpu::kAllTypes) {
    SCOPED_TRACE(WeightTypeName(type));
    const GgufBuilder quantized = RandomLlama(type, /*decode=*/false);
    const std::vector<float> logits = Logits(quantized, Compute::kF32);
    ASSERT_EQ(logits.size(), 5u * kVocab);
    EXPECT_EQ(cpu::Bits(logits),
              cpu::Bits(Logits(RandomLlama(type, /*decode=*/true), Compute::kF32)));
    for (float logit : Logits(quantized, Compute::kFast)) EXPECT_TRUE(std::isfinite(logit));
  }
}

}  // namespace
}  // namespace lynx
