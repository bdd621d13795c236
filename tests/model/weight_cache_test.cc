// SPDX-License-Identifier: Apache-2.0
// The weight cache: a start that finds packed weights computes what one computes that packs them,
// and nothing that is done to the files changes that.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "model/weights.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/tiny_model_paths.h"
#include "tests/temp_directory.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

enum class Source { kPacked, kMapped };

// Weights with the files that they are views of.
struct Loaded {
  std::unique_ptr<ModelFiles> files;
  ModelWeights weights;
  Source source() const {
    return weights.packed_file == nullptr ? Source::kPacked : Source::kMapped;
  }
};

class WeightCacheTest : public testing::Test {
 protected:
  WeightCacheTest() : backend_(cpu::CpuBackend::Create({})), cache_(root_ / "cache") {}

  Loaded Load(const std::string& path, ShardSpec shard = {}) {
    return Load(path, *backend_, shard);
  }
  // What is written is on the disk when this returns.
  Loaded Load(const std::string& path, Backend& backend, ShardSpec shard = {}) {
    Loaded loaded;
    loaded.files = *ModelFiles::Open(path);
    auto weights = LoadWeights(*loaded.files, backend, shard, nullptr, cache_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    loaded.weights = *std::move(weights);
    if (loaded.weights.packed_file_writer != nullptr) loaded.weights.packed_file_writer->Wait();
    return loaded;
  }

  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(cache_ / "weights", none)) {
      files.push_back(entry.path());
    }
    return files;
  }
  fs::path OnlyFile() const {
    const auto files = Files();
    EXPECT_THAT(files, SizeIs(1));
    return files.empty() ? fs::path() : files[0];
  }
  static void Overwrite(const fs::path& path, int64_t at, char byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
    file.put(byte);
  }
  static char ByteAt(const fs::path& path, int64_t at) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
    return static_cast<char>(file.get());
  }
  // A copy of a GGUF under one path, however often; its time of change is that of the original.
  std::string CopyOf(const std::string& gguf) const {
    const fs::path copy = root_ / "model.gguf";
    fs::copy_file(gguf, copy, fs::copy_options::overwrite_existing);
    fs::last_write_time(copy, fs::last_write_time(gguf));
    return copy;
  }

  // Logits of a short prompt.
  std::vector<float> Logits(const std::string& path, const std::string& cache) {
    auto model = Model::Load(path, *backend_, 16, nullptr, 0, cache);
    EXPECT_TRUE(model.ok()) << model.status();
    SequenceRunner runner(**model, 1);
    TestSequence sequence = runner.NewSequence(8);
    return runner.Feed(sequence, std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 8}, 16,
                       SequenceRunner::Rows::kLast);
  }

  std::unique_ptr<cpu::CpuBackend> backend_;
  const TempDirectory root_;
  const fs::path cache_;
};

// The packed bytes of every matrix.
std::vector<std::vector<std::byte>> Bytes(const ModelWeights& weights) {
  std::vector<std::vector<std::byte>> all;
  const auto add = [&all](const Linear& linear) {
    const auto packed = linear.weight->packed();
    all.emplace_back(packed.begin(), packed.end());
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      add(*linear);
    }
  }
  add(weights.head);
  return all;
}

TEST_F(WeightCacheTest, ASecondLoadMapsTheSameBytes) {
  for (const std::string& path : {kTinyQwen3, kTinyLlama}) {
    const Loaded first = Load(path), second = Load(path);
    EXPECT_EQ(first.source(), Source::kPacked);
    ASSERT_EQ(second.source(), Source::kMapped);
    EXPECT_EQ(second.weights.packed_file_writer, nullptr);
    EXPECT_TRUE(second.weights.packed_file->is_mapped());
    EXPECT_EQ(Bytes(first.weights), Bytes(second.weights));
    EXPECT_EQ(second.weights.head.weight->bytes(), 0u);  // no memory of its own
  }
  EXPECT_THAT(Files(), SizeIs(2));
}

TEST_F(WeightCacheTest, LogitsAreThoseWithoutACache) {
  for (const std::string& path : {kTinyQwen3, kTinyLlama}) {
    const std::vector<float> want = Logits(path, "");
    EXPECT_EQ(Logits(path, cache_), want);  // writes, or stops to write
    Load(path);
    EXPECT_EQ(Load(path).source(), Source::kMapped);
    EXPECT_EQ(Logits(path, cache_), want);
  }
}

TEST_F(WeightCacheTest, WithoutADirectoryOrALayoutNothingIsKept) {
  const auto files = *ModelFiles::Open(kTinyQwen3);
  const auto f32 = cpu::CpuBackend::Create({.compute = Compute::kF32});
  EXPECT_EQ(Load(kTinyQwen3, *f32).weights.packed_file_writer, nullptr);
  const auto weights = LoadWeights(*files, *backend_, {}, nullptr, "");
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->packed_file_writer, nullptr);
  EXPECT_FALSE(fs::exists(cache_));
}

// One file serves all instruction sets.
TEST_F(WeightCacheTest, TargetsShareAFile) {
  const auto scalar = cpu::CpuBackend::Create({.target = cpu::Target::kScalar});
  Load(kTinyLlama);
  EXPECT_EQ(Load(kTinyLlama, *scalar).source(), Source::kMapped);
}

TEST_F(WeightCacheTest, EachRankHasItsOwnFile) {
  for (int rank : {0, 1}) EXPECT_EQ(Load(kTinyQwen3, {rank, 2}).source(), Source::kPacked);
  EXPECT_EQ(Load(kTinyQwen3).source(), Source::kPacked);
  EXPECT_THAT(Files(), SizeIs(3));
  for (int rank : {0, 1}) EXPECT_EQ(Load(kTinyQwen3, {rank, 2}).source(), Source::kMapped);
}

// Every byte of the header and the table, some of the matrices, the last byte.
TEST_F(WeightCacheTest, ADamagedFileIsReplaced) {
  const auto want = Bytes(Load(kTinyLlama).weights);
  const fs::path file = OnlyFile();
  std::vector<int64_t> places = {4096, -1};
  for (int64_t at = 0; at < 40 + 24; at += 3) places.push_back(at);
  for (const int64_t at : places) {
    Overwrite(file, at, static_cast<char>(ByteAt(file, at) ^ 0x10));
    const Loaded again = Load(kTinyLlama);
    EXPECT_EQ(again.source(), Source::kPacked) << at;
    EXPECT_EQ(Bytes(again.weights), want) << at;
  }
  EXPECT_EQ(OnlyFile(), file);
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kMapped);
}

TEST_F(WeightCacheTest, AShortFileIsReplaced) {
  Load(kTinyLlama);
  const fs::path file = OnlyFile();
  const auto whole = static_cast<int64_t>(fs::file_size(file));
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{39}, int64_t{40}, int64_t{100},
                             int64_t{4096}, whole - 1, whole + 1}) {
    fs::resize_file(file, size);
    EXPECT_EQ(Load(kTinyLlama).source(), Source::kPacked) << size;
    EXPECT_EQ(Load(kTinyLlama).source(), Source::kMapped) << size;
  }
}

// Of this model, but written for another key: as if somebody had renamed it.
TEST_F(WeightCacheTest, ARenamedFileIsNotTaken) {
  Load(kTinyLlama);
  const fs::path llama = OnlyFile();
  Load(kTinyQwen3);
  for (const fs::path& file : Files()) {
    if (file != llama) fs::copy_file(llama, file, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(Load(kTinyQwen3).source(), Source::kPacked);
  EXPECT_EQ(Load(kTinyQwen3).source(), Source::kMapped);
}

// In use: deleted, truncated, written over. A mapping of a short file would end the process.
TEST_F(WeightCacheTest, AFileInUseMayBeDamaged) {
  Load(kTinyLlama);
  const fs::path file = OnlyFile();
  const Loaded before = Load(kTinyLlama);
  ASSERT_EQ(before.source(), Source::kMapped);
  const auto want = Bytes(before.weights);
  fs::resize_file(file, 0);
  EXPECT_EQ(Bytes(before.weights), want);

  Load(kTinyLlama);
  const Loaded overwritten = Load(kTinyLlama);
  ASSERT_EQ(overwritten.source(), Source::kMapped);
  Overwrite(file, 4096, 77);
  EXPECT_EQ(Bytes(overwritten.weights), want);

  Load(kTinyLlama);
  const Loaded deleted = Load(kTinyLlama);
  ASSERT_EQ(deleted.source(), Source::kMapped);
  fs::remove_all(cache_);
  EXPECT_EQ(Bytes(deleted.weights), want);
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kPacked);
}

// Same path, size and time of change: the bytes of the weights tell them apart. Same bytes, another
// time: packed again, since a sample of the bytes is all that was looked at.
TEST_F(WeightCacheTest, AnotherModelUnderThePathIsAMiss) {
  const std::string path = CopyOf(kTinyLlama);
  const auto time = fs::last_write_time(path);
  Load(path);
  EXPECT_EQ(Load(path).source(), Source::kMapped);
  Overwrite(path, -1, static_cast<char>(ByteAt(path, -1) ^ 1));
  fs::last_write_time(path, time);
  EXPECT_EQ(Load(path).source(), Source::kPacked);
  EXPECT_EQ(Load(CopyOf(kTinyLlama)).source(), Source::kPacked);
  EXPECT_EQ(Load(path).source(), Source::kMapped);
  fs::last_write_time(path, time + std::chrono::seconds(1));
  EXPECT_EQ(Load(path).source(), Source::kPacked);
}

TEST_F(WeightCacheTest, FilesOfWhatAPathHeldBeforeAreRemoved) {
  const fs::path model = root_ / "model";
  fs::copy(kTinyQwen3, model, fs::copy_options::recursive);
  Load(kTinyLlama);
  const fs::path other = OnlyFile();
  Load(model);
  for (int rank : {0, 1}) Load(model, {rank, 2});
  const Loaded before = Load(model);
  ASSERT_EQ(before.source(), Source::kMapped);
  const auto want = Bytes(before.weights);
  EXPECT_THAT(Files(), SizeIs(4));

  const fs::path weights = model / "model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_EQ(Load(model, {0, 2}).source(), Source::kPacked);
  EXPECT_THAT(Files(), AllOf(SizeIs(2), Contains(other)));
  EXPECT_EQ(Load(model).source(), Source::kPacked);
  EXPECT_THAT(Files(), SizeIs(3));
  EXPECT_EQ(Load(model, {0, 2}).source(), Source::kMapped);
  EXPECT_EQ(Bytes(before.weights), want);
}

TEST_F(WeightCacheTest, ADirectoryThatCannotBeWrittenIsNoError) {
  std::ofstream(cache_.string()) << "a file where the directory should be";
  const Loaded loaded = Load(kTinyLlama);
  EXPECT_EQ(loaded.source(), Source::kPacked);
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kPacked);
  fs::remove(cache_);
  if (geteuid() == 0) return;  // may write everywhere
  fs::create_directories(cache_ / "weights");
  fs::permissions(cache_ / "weights", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kPacked);
  fs::permissions(cache_ / "weights", fs::perms::owner_all);
}

// A full disk, as a limit on the size of files.
TEST_F(WeightCacheTest, ADiskThatIsFullIsNoError) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = 65536, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Source source = Load(kTinyLlama).source();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(source, Source::kPacked);
  EXPECT_THAT(Files(), IsEmpty());
}

// While another process writes the file, nobody else does; what a killed one has left is no hurdle.
TEST_F(WeightCacheTest, OneWritesAtATime) {
  Load(kTinyLlama);
  const fs::path file = OnlyFile();
  const std::string unfinished = file.string() + ".tmp";
  fs::remove(file);
  const int fd = open(unfinished.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  ASSERT_EQ(write(fd, "half", 4), 4);
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kPacked);
  EXPECT_THAT(Files(), ElementsAre(fs::path(unfinished)));
  close(fd);
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kPacked);
  EXPECT_THAT(Files(), ElementsAre(file));
  EXPECT_EQ(Load(kTinyLlama).source(), Source::kMapped);
}

TEST_F(WeightCacheTest, ManyMayStartAtOnce) {
  const auto want = Bytes(Load(kTinyQwen3).weights);
  fs::remove_all(cache_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto backend = cpu::CpuBackend::Create({});
      for (int i = 0; i < 5; ++i) EXPECT_EQ(Bytes(Load(kTinyQwen3, *backend).weights), want);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Files(), SizeIs(1));
  EXPECT_EQ(Load(kTinyQwen3).source(), Source::kMapped);
}

// Ending while the file is written gives it up, and leaves nothing that a later start would take.
TEST_F(WeightCacheTest, WritingEndsWithTheModel) {
  const auto files = *ModelFiles::Open(kTinyLlama);
  for (int i = 0; i < 20; ++i) {
    auto weights = LoadWeights(*files, *backend_, {}, nullptr, cache_);
    ASSERT_TRUE(weights.ok());
  }
  const Loaded loaded = Load(kTinyLlama);
  EXPECT_EQ(Bytes(loaded.weights), Bytes(Load(kTinyLlama).weights));
  EXPECT_THAT(Files(), SizeIs(1));
}

}  // namespace
}  // namespace lynx
