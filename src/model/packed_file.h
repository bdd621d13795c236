// SPDX-License-Identifier: Apache-2.0
// Packed matrices in a file, as a back-end's kernels read them, so that a later start maps them
// instead of packing again. Layout, little-endian:
//
//   offset 0    PackedFileHeader
//   then        PackedFileEntry [num_matrices], in the order in which a model loads them
//   then        the matrices, each at a multiple of 4096
//
// A file is written under another name and gets its own when it is complete and on the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lynx/status.h"
#include "model/leased_file.h"

namespace lynx {

// PLACE-MODEL-FORM.pack, in hexadecimal: hashes of what a file was made from (weights.h). A place
// has one model at a time: who writes a file there removes those of the models before.
struct PackedFileName {
  uint64_t place;  // the model's path
  uint64_t model;  // what lies there
  uint64_t form;   // the layout of the matrices, and the shard

  std::string Text() const;
  uint64_t Key() const;  // of model and form
};

struct PackedFileHeader {
  char magic[8];  // "LYNXPACK"
  uint64_t key;   // PackedFileName's
  uint64_t file_bytes;
  uint32_t version;
  uint32_t num_matrices;
  uint64_t checksum;  // XXH3 of the fields above and of the entries
};
static_assert(sizeof(PackedFileHeader) == 40);

struct PackedFileEntry {
  uint64_t offset;  // in the file
  uint64_t bytes;
  uint64_t checksum;  // XXH3 of the bytes
};
static_assert(sizeof(PackedFileEntry) == 24);

// A complete file. The bytes that it gives out live as long as it does.
class PackedFile {
 public:
  // kNotFound: there is none. kUnavailable: it cannot be read. kDataLoss: it is not what was
  // written, or made from something else than its name says.
  static absl::StatusOr<std::unique_ptr<PackedFile>> Open(const std::string& directory,
                                                          const PackedFileName& name);

  // The next matrix. kDataLoss when its bytes are not those that were written, or there is none.
  absl::StatusOr<std::span<const std::byte>> Next();

  bool is_mapped() const { return file_->was_mapped(); }

 private:
  PackedFile(std::string path, std::unique_ptr<LeasedFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status CheckTable(uint64_t key);
  absl::Status Damaged(const std::string& what) const;

  const std::string path_;
  const std::unique_ptr<LeasedFile> file_;
  std::span<const PackedFileEntry> entries_;
  size_t next_ = 0;
};

// Writes a file in a thread of its own. Nothing that goes wrong is more than a line in the log.
class PackedFileWriter {
 public:
  // The matrices outlive this object. Does nothing when another process writes the same file.
  PackedFileWriter(std::string directory, const PackedFileName& name,
                   std::vector<std::span<const std::byte>> matrices);
  // Waits; a file that is not complete then is given up, unless Wait was called before.
  ~PackedFileWriter();

  void Wait();

 private:
  absl::Status Write(int fd);
  void Run();
  void RemoveFormerModels() const;

  const std::string directory_;
  const PackedFileName name_;
  const std::string path_;
  const std::vector<std::span<const std::byte>> matrices_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace lynx
