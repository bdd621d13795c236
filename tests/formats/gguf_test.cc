// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "formats/model_files.h"
#include "tests/formats/file_builders.h"

namespace lynx {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class GgufTest : public testing::Test {
 protected:
  std::string Write(const GgufBuilder& builder) {
    return directory_.Write("model.gguf", builder.Bytes());
  }
  std::unique_ptr<GgufFile> Open(const GgufBuilder& builder) {
    auto file = GgufFile::Open(Write(builder));
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::unique_ptr<ModelFiles> OpenModel(const GgufBuilder& builder) {
    auto files = ModelFiles::Open(Write(builder));
    EXPECT_TRUE(files.ok()) << files.status();
    return files.ok() ? *std::move(files) : nullptr;
  }
  std::string ErrorOf(const GgufBuilder& builder) {
    const auto files = ModelFiles::Open(Write(builder));
    EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(files.status().message());
  }

  TempDirectory directory_;
};

TEST_F(GgufTest, EveryKindOfValue) {
  GgufBuilder builder;
  builder.Entry("u8", 0, Raw<uint8_t>(200)).Entry("i8", 1, Raw<int8_t>(-3));
  builder.Entry("u16", 2, Raw<uint16_t>(60000)).Entry("i16", 3, Raw<int16_t>(-300));
  builder.U32("u32", 4000000000u).Entry("i32", 5, Raw<int32_t>(-70000)).F32("f32", 0.5f);
  builder.Entry("bool", 7, Raw<uint8_t>(1)).Text("text", "hé");
  builder.Entry("u64", 10, Raw<uint64_t>(~uint64_t{0})).Entry("i64", 11, Raw<int64_t>(-5));
  builder.Entry("f64", 12, Raw(0.1)).Texts("texts", {"a", ""});
  builder.Entry("ints", 9,
                Raw<uint32_t>(5) + Raw<uint64_t>(2) + Raw<int32_t>(-1) + Raw<int32_t>(7));
  const auto file = Open(builder);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->Int("u8", 0, 255).value(), 200);
  EXPECT_EQ(file->Int("i8", -9, 9).value(), -3);
  EXPECT_EQ(file->Int("u16", 0, 65535).value(), 60000);
  EXPECT_EQ(file->Int("i16", -999, 0).value(), -300);
  EXPECT_EQ(file->Int("u32", 0, int64_t{1} << 40).value(), 4000000000);
  EXPECT_EQ(file->Int("i32", -99999, 0).value(), -70000);
  EXPECT_EQ(file->Int("i64", -9, 9).value(), -5);
  EXPECT_EQ(file->Float("f32").value(), 0.5);
  EXPECT_EQ(file->Float("f64").value(), 0.1);
  EXPECT_EQ(file->String("text").value(), "hé");
  EXPECT_TRUE(std::get<bool>(file->Find("bool")->value));
  EXPECT_THAT(*file->Strings("texts").value(), ElementsAre("a", ""));
  EXPECT_THAT(*file->Ints("ints").value(), ElementsAre(-1, 7));
  EXPECT_EQ(file->Find("absent"), nullptr);

  EXPECT_THAT(std::string(file->Int("u64", 0, 9).status().message()),
              HasSubstr("model.gguf: u64: 18446744073709551615 is not in 0..9"));
  EXPECT_THAT(std::string(file->String("u8").status().message()),
              HasSubstr("u8: is an integer, want a string"));
  EXPECT_THAT(std::string(file->Strings("absent").status().message()), HasSubstr("missing"));
}

TEST_F(GgufTest, MapsNamesShapesAndTheQkPermutation) {
  const auto files = OpenModel(GgufBuilder::TinyLlama());
  ASSERT_NE(files, nullptr);
  EXPECT_EQ(files->format(), "GGUF");
  EXPECT_TRUE(files->config().tie_word_embeddings);
  EXPECT_THAT(files->config().eos_ids, ElementsAre(2));
  const TensorInfo* q = files->Find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->label, "blk.0.attn_q.weight");
  // Head by head: the first half's rows lie at even places, the second half's at odd ones.
  EXPECT_THAT(q->row_order, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(files->Find("model.layers.0.self_attn.k_proj.weight")->row_order,
              ElementsAre(0, 2, 1, 3));
  EXPECT_TRUE(files->Find("model.layers.0.self_attn.v_proj.weight")->row_order.empty());
  EXPECT_THAT(files->Find("model.layers.0.mlp.down_proj.weight")->shape, ElementsAre(8, 12));
  EXPECT_EQ(files->Find("lm_head.weight"), nullptr);
}

TEST_F(GgufTest, RopeScalingAndEndIds) {
  auto builder = GgufBuilder::TinyLlama();
  builder.Text("llama.rope.scaling.type", "yarn")
      .F32("llama.rope.scaling.factor", 4)
      .F32("llama.rope.scaling.attn_factor", 2)
      .U32("llama.rope.scaling.original_context_length", 32)
      .U32("tokenizer.ggml.eot_token_id", 1)
      .U32("tokenizer.ggml.eom_token_id", 2);
  auto files = OpenModel(builder);
  ASSERT_NE(files, nullptr);
  EXPECT_EQ(files->config().rope.scaling, RopeScaling::kYarn);
  EXPECT_NEAR(files->config().rope.attention_factor, 2 * (0.1 * std::log(4.0) + 1), 1e-12);
  EXPECT_EQ(files->config().max_model_len, 128);
  EXPECT_THAT(files->config().eos_ids, ElementsAre(2, 1));

  files = OpenModel(GgufBuilder::TinyLlama().F32("llama.rope.scale_linear", 8));
  ASSERT_NE(files, nullptr);
  EXPECT_EQ(files->config().rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(files->config().rope.factor, 8);

  EXPECT_THAT(ErrorOf(GgufBuilder::TinyLlama().Text("llama.rope.scaling.type", "longrope")),
              HasSubstr("llama.rope.scaling.type: longrope is not supported"));
}

// A file names one end of sequence; the families have more tokens that end an answer.
TEST_F(GgufTest, AddedTokensThatEndAnAnswerAreFoundByTheirText) {
  auto builder = GgufBuilder::TinyLlama();
  builder.Texts("tokenizer.ggml.tokens", {"<|eot_id|>", "<|im_end|>", "<|end_of_text|>"});
  const auto types = [&](std::vector<int32_t> of_tokens) {
    std::string bytes = Raw<uint32_t>(5) + Raw<uint64_t>(of_tokens.size());
    for (int32_t type : of_tokens) bytes += Raw(type);
    builder.Entry("tokenizer.ggml.token_type", 9, bytes);
    return OpenModel(builder)->config().eos_ids;
  };
  EXPECT_THAT(types({3, 3, 3}), ElementsAre(2, 0, 1));  // control
  EXPECT_THAT(types({1, 4, 3}), ElementsAre(2, 1));     // normal, user-defined
  EXPECT_THAT(types({3}), ElementsAre(2, 0));           // the tokenizer complains of the length
}

TEST_F(GgufTest, OptionalBiasesAndAWindowAreRead) {
  auto builder = GgufBuilder::TinyLlama();
  builder.F32Tensor("blk.0.attn_q.bias", {8}).U32("llama.attention.sliding_window", 16);
  const auto files = OpenModel(builder);
  ASSERT_NE(files, nullptr);
  EXPECT_EQ(files->Find("model.layers.0.self_attn.q_proj.bias")->row_order.size(), 8u);
  EXPECT_EQ(files->config().sliding_window, 16);
}

// Numbers, block lengths and bytes of ggml.h and ggml-common.h.
TEST_F(GgufTest, ReadsEveryTypeInItsBlocks) {
  const struct {
    uint32_t number;
    WeightType type;
    uint64_t elements, bytes;
  } types[] = {
      {0, WeightType::kF32, 1, 4},         {1, WeightType::kF16, 1, 2},
      {30, WeightType::kBf16, 1, 2},       {2, WeightType::kQ4_0, 32, 18},
      {3, WeightType::kQ4_1, 32, 20},      {6, WeightType::kQ5_0, 32, 22},
      {7, WeightType::kQ5_1, 32, 24},      {8, WeightType::kQ8_0, 32, 34},
      {12, WeightType::kQ4_K, 256, 144},   {13, WeightType::kQ5_K, 256, 176},
      {14, WeightType::kQ6_K, 256, 210},   {10, WeightType::kQ2_K, 256, 84},
      {11, WeightType::kQ3_K, 256, 110},   {20, WeightType::kIQ4_NL, 32, 18},
      {23, WeightType::kIQ4_XS, 256, 136},
  };
  for (const auto& t : types) {
    auto builder = GgufBuilder::TinyLlama();
    builder.Tensor("blk.0.extra.weight", {2 * t.elements, 3}, t.number, 6 * t.bytes);
    const auto files = OpenModel(builder);
    ASSERT_NE(files, nullptr);
    EXPECT_EQ(files->tensors().back().type, t.type) << t.number;
    EXPECT_EQ(files->tensors().back().bytes, 6 * t.bytes) << t.number;
    if (t.elements == 1) continue;
    builder = GgufBuilder::TinyLlama();
    builder.Tensor("blk.0.extra.weight", {t.elements + 1, 3}, t.number, 6 * t.bytes);
    EXPECT_THAT(ErrorOf(builder), HasSubstr(absl::StrCat("is not a multiple of the ", t.elements,
                                                         "-element block of ")));
  }
}

TEST_F(GgufTest, NamesFileTensorAndTypeOfWhatItDoesNotRead) {
  for (const auto& [number, name] :
       {std::pair{16, "IQ2_XXS"}, std::pair{19, "IQ1_S"}, std::pair{21, "IQ3_S"},
        std::pair{34, "TQ1_0"}, std::pair{35, "TQ2_0"}, std::pair{39, "MXFP4"}}) {
    auto builder = GgufBuilder::TinyLlama();
    builder.Tensor("blk.0.extra.weight", {256}, number, 256);
    EXPECT_THAT(ErrorOf(builder),
                HasSubstr(absl::StrCat("model.gguf: tensor blk.0.extra.weight: type ", number, " (",
                                       name, ") is not supported")));
  }
  EXPECT_THAT(ErrorOf(GgufBuilder::TinyLlama().U32("llama.rope.dimension_count", 2)),
              HasSubstr("llama.rope.dimension_count: 2 differs"));
  EXPECT_THAT(ErrorOf(GgufBuilder::TinyLlama().U32("llama.expert_count", 8)),
              HasSubstr("llama.expert_count: 8: is not supported"));
  EXPECT_THAT(ErrorOf(GgufBuilder::TinyLlama().Text("general.architecture", "a\nb")),
              AllOf(HasSubstr("a\\nb"), testing::Not(HasSubstr("\n"))));
}

// Most files of Llama 2 are of this version; its layout is that of version 3.
TEST_F(GgufTest, VersionTwo) {
  EXPECT_NE(OpenModel(GgufBuilder::TinyLlama().Version(2)), nullptr);
  for (uint32_t version : {0u, 1u, 4u}) {
    EXPECT_THAT(ErrorOf(GgufBuilder::TinyLlama().Version(version)),
                HasSubstr("is not supported, want 2 or 3"));
  }
}

class SplitGgufTest : public GgufTest {
 protected:
  SplitGgufTest() {
    whole_.Tensor("rope_freqs.weight", {2}, 0, 0, Raw(1.0f) + Raw(8.0f));
    whole_.Tensor("output.weight", {8, 3}, 0, 0, std::string(8 * 3 * 4, 'x'));
    parts_ = whole_.Split(3);
  }
  std::string PathOf(size_t number) { return absl::StrCat(directory_.path(), "/", NameOf(number)); }
  void WriteParts() {
    for (size_t i = 0; i < parts_.size(); ++i) directory_.Write(NameOf(i), parts_[i].Bytes());
  }
  std::string ErrorOfParts() {
    WriteParts();
    const auto files = ModelFiles::Open(PathOf(0));
    EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(files.status().message());
  }

  GgufBuilder whole_ = GgufBuilder::TinyLlama();
  std::vector<GgufBuilder> parts_;

 private:
  static std::string NameOf(size_t number) {
    return absl::StrCat("tiny-0000", number + 1, "-of-00003.gguf");
  }
};

TEST_F(SplitGgufTest, IsTheWholeModel) {
  WriteParts();
  const auto whole = OpenModel(whole_);
  const auto files = ModelFiles::Open(PathOf(0));
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ((*files)->tensors().size(), whole->tensors().size());
  for (size_t i = 0; i < whole->tensors().size(); ++i) {
    const TensorInfo& tensor = (*files)->tensors()[i];
    const TensorInfo& want = whole->tensors()[i];
    EXPECT_EQ(tensor.name, want.name);
    EXPECT_EQ(tensor.row_order, want.row_order);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(tensor.data), tensor.bytes),
              std::string_view(reinterpret_cast<const char*>(want.data), want.bytes));
  }
  // What the configuration takes from tensors may be in any file.
  EXPECT_THAT((*files)->config().rope.freq_divisors, ElementsAre(1.0f, 8.0f));
  EXPECT_FALSE((*files)->config().tie_word_embeddings);
  EXPECT_EQ((*files)->Find("model.embed_tokens.weight")->file, PathOf(0));
  EXPECT_EQ((*files)->Find("lm_head.weight")->file, PathOf(2));
}

TEST_F(SplitGgufTest, IsOpenedByItsFirstFile) {
  WriteParts();
  const auto second = ModelFiles::Open(PathOf(1));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("split.no: file 2 of 3: open the one that ends with -00001-of-00003.gguf"));
  const auto renamed = ModelFiles::Open(directory_.Write("tiny.gguf", parts_[0].Bytes()));
  EXPECT_THAT(std::string(renamed.status().message()),
              HasSubstr("tiny.gguf: split.count: 3 files, but the name does not end with"));
}

TEST_F(SplitGgufTest, RefusesFilesThatDoNotBelongTogether) {
  const auto valid = parts_;
  parts_[2].Entry("split.no", 2, Raw<uint16_t>(1));
  EXPECT_THAT(ErrorOfParts(), HasSubstr("tiny-00003-of-00003.gguf: split.no: 1 is not in 2..2"));
  parts_ = valid;
  parts_[1].Entry("split.count", 2, Raw<uint16_t>(2));
  EXPECT_THAT(ErrorOfParts(), HasSubstr("tiny-00002-of-00003.gguf: split.count: 2 is not in 3..3"));
  parts_ = valid;
  parts_[1].F32Tensor("blk.0.extra.weight", {8});
  EXPECT_THAT(ErrorOfParts(),
              HasSubstr("split.tensors.count: 13 tensors, but the 3 files hold 14"));
  parts_ = valid;
  parts_[2].F32Tensor("output_norm.weight", {8});
  parts_[0].Entry("split.tensors.count", 5, Raw<int32_t>(14));
  EXPECT_THAT(ErrorOfParts(), HasSubstr("duplicate name"));
  parts_ = valid;
  parts_.pop_back();
  std::filesystem::remove(PathOf(2));
  EXPECT_THAT(ErrorOfParts(), HasSubstr("tiny-00003-of-00003.gguf: No such file"));
}

// gguf-split leaves a count of 0 in a model that it has put together again.
TEST_F(SplitGgufTest, OneThatWasMergedIsWhole) {
  EXPECT_NE(OpenModel(whole_.Entry("split.no", 2, Raw<uint16_t>(0))
                          .Entry("split.count", 2, Raw<uint16_t>(0))
                          .Entry("split.tensors.count", 5, Raw<int32_t>(13))),
            nullptr);
}

TEST_F(GgufTest, NoSuchFileAndNotAFile) {
  EXPECT_THAT(std::string(ModelFiles::Open("/nowhere/x.gguf").status().message()),
              HasSubstr("/nowhere/x.gguf: no such file"));
  EXPECT_THAT(std::string(GgufFile::Open(directory_.path()).status().message()),
              HasSubstr("not a regular file"));
}

TEST_F(GgufTest, AClonesPointerIsNamed) {
  const std::string path = directory_.Write(
      "model.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 138\n");
  EXPECT_EQ(std::string(ModelFiles::Open(path).status().message()),
            path + ": a Git LFS pointer, not the file itself (git lfs pull fetches it)");
}

TEST_F(GgufTest, ADirectoryOfThemIsNoModel) {
  directory_.Write("b.gguf", "");
  directory_.Write("a-00001-of-00002.gguf", "");
  const auto files = ModelFiles::Open(directory_.path());
  EXPECT_EQ(std::string(files.status().message()),
            directory_.path() + ": config.json: missing; of the GGUF files here name one, as " +
                directory_.path() + "/a-00001-of-00002.gguf");
}

// Bytes flipped, cut or repeated anywhere: an answer or an error, never a crash.
TEST_F(GgufTest, SurvivesMutations) {
  const std::string valid = GgufBuilder::TinyLlama().Bytes();
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = valid;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      const size_t at = random() % 1100;  // header, metadata and tensor infos
      bytes[at] = static_cast<char>(random() % 2 == 0 ? 0xff : random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto files = ModelFiles::Open(directory_.Write("mutant.gguf", bytes));
    if (files.ok()) continue;
    EXPECT_EQ(files.status().message().find('\n'), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace lynx
