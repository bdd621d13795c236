// SPDX-License-Identifier: Apache-2.0
#include "model/packed_file.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace lynx {
namespace {

constexpr char kMagic[8] = {'L', 'Y', 'N', 'X', 'P', 'A', 'C', 'K'};
constexpr uint32_t kVersion = 1;
constexpr size_t kAlignment = 4096;
constexpr size_t kWriteBytes = size_t{4} << 20;

size_t Aligned(size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t TableChecksum(const PackedFileHeader& header, std::span<const PackedFileEntry> entries) {
  const uint64_t fields = XXH3_64bits(&header, offsetof(PackedFileHeader, checksum));
  return XXH3_64bits_withSeed(entries.data(), entries.size_bytes(), fields);
}

absl::Status Error() { return absl::UnavailableError(std::strerror(errno)); }

absl::Status WriteAt(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error();
    offset += static_cast<size_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// Only a matter of how soon a name is on the disk.
void SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

void Warn(const std::string& path, const absl::Status& status) {
  spdlog::warn("weight cache: {}: {}; the next start packs again", path,
               std::string(status.message()));
}

// A file that only its holder writes: locked, and still the one of that name. -1: another process
// has it, or had it until just now. kUnavailable: it cannot be made.
absl::StatusOr<int> OpenLocked(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Error();
  struct stat held, named;
  const bool mine = flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &held) == 0 &&
                    stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino;
  if (mine) return fd;
  close(fd);
  return -1;
}

}  // namespace

std::string PackedFileName::Text() const {
  const auto hex = [](uint64_t hash) { return absl::Hex(hash, absl::kZeroPad16); };
  return absl::StrCat(hex(place), "-", hex(model), "-", hex(form), ".pack");
}

uint64_t PackedFileName::Key() const {
  const uint64_t made_from[] = {model, form};
  return XXH3_64bits(made_from, sizeof(made_from));
}

// ---- reading -----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::Open(const std::string& directory,
                                                             const PackedFileName& name) {
  const std::string path = absl::StrCat(directory, "/", name.Text());
  LYNX_ASSIGN_OR_RETURN(auto bytes, LeasedFile::Open(path));
  std::unique_ptr<PackedFile> file(new PackedFile(path, std::move(bytes)));
  LYNX_RETURN_IF_ERROR(file->CheckTable(name.Key()));
  return file;
}

absl::Status PackedFile::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", what));
}

absl::Status PackedFile::CheckTable(uint64_t key) {
  const std::span<const std::byte> bytes = file_->bytes();
  PackedFileHeader header;
  if (bytes.size() < sizeof(header)) return Damaged("too short for a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.version != kVersion) {
    return Damaged("not a file of packed weights of this version");
  }
  if (header.file_bytes != bytes.size()) {
    return Damaged(absl::StrCat(bytes.size(), " bytes, want ", header.file_bytes));
  }
  if (header.num_matrices > (bytes.size() - sizeof(header)) / sizeof(PackedFileEntry)) {
    return Damaged(absl::StrCat(header.num_matrices, " matrices do not fit"));
  }
  entries_ = {reinterpret_cast<const PackedFileEntry*>(bytes.data() + sizeof(header)),
              header.num_matrices};
  if (TableChecksum(header, entries_) != header.checksum) return Damaged("header: wrong checksum");
  if (header.key != key) return Damaged("made from other weights than its name says");
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> PackedFile::Next() {
  if (next_ == entries_.size()) return Damaged(absl::StrCat("ends after ", next_, " matrices"));
  const PackedFileEntry& entry = entries_[next_++];
  const std::span<const std::byte> file = file_->bytes();
  if (entry.offset % kAlignment != 0 || entry.offset > file.size() ||
      entry.bytes > file.size() - entry.offset) {
    return Damaged(absl::StrCat("matrix ", next_ - 1, ": not in the file"));
  }
  const std::span<const std::byte> bytes = file.subspan(entry.offset, entry.bytes);
  // One system call instead of a page fault for every few pages; a mere hint where it fails.
  if (is_mapped()) {
    madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_POPULATE_READ);
  }
  if (XXH3_64bits(bytes.data(), bytes.size()) != entry.checksum) {
    return Damaged(absl::StrCat("matrix ", next_ - 1, ": wrong checksum"));
  }
  return bytes;
}

// ---- writing -----------------------------------------------------------------------------------

PackedFileWriter::PackedFileWriter(std::string directory, const PackedFileName& name,
                                   std::vector<std::span<const std::byte>> matrices)
    : directory_(std::move(directory)),
      name_(name),
      path_(absl::StrCat(directory_, "/", name.Text())),
      matrices_(std::move(matrices)) {
  // Signals belong to the program's own threads; SIGXFSZ becomes an error of the write.
  sigset_t all, saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
}

PackedFileWriter::~PackedFileWriter() {
  stopping_ = true;
  Wait();
}

void PackedFileWriter::Wait() {
  if (thread_.joinable()) thread_.join();
}

void PackedFileWriter::Run() {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  const std::string unfinished = path_ + ".tmp";
  const absl::StatusOr<int> fd = OpenLocked(unfinished);
  if (!fd.ok()) {
    Warn(unfinished, fd.status());
    return;
  }
  if (*fd < 0) return;
  absl::Status status = Write(*fd);
  if (status.ok() && std::rename(unfinished.c_str(), path_.c_str()) != 0) status = Error();
  if (status.ok()) {
    SyncDirectory(directory_);
    spdlog::info("weight cache: wrote {}", path_);
    RemoveFormerModels();
  } else {
    unlink(unfinished.c_str());
    if (!absl::IsCancelled(status)) Warn(path_, status);
  }
  close(*fd);
}

// A process that maps one keeps its bytes.
void PackedFileWriter::RemoveFormerModels() const {
  const std::string own = name_.Text();
  const std::string place = own.substr(0, own.find('-') + 1);
  const std::string model = own.substr(0, own.rfind('-') + 1);
  std::error_code error, not_removed;
  for (std::filesystem::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(place) || name.starts_with(model) || !name.ends_with(".pack")) continue;
    if (std::filesystem::remove(it->path(), not_removed)) {
      spdlog::info("weight cache: removed {}: its model has changed", it->path().string());
    }
  }
}

absl::Status PackedFileWriter::Write(int fd) {
  if (ftruncate(fd, 0) != 0) return Error();  // what a killed process has left
  std::vector<PackedFileEntry> entries;
  uint64_t offset = Aligned(sizeof(PackedFileHeader) + matrices_.size() * sizeof(PackedFileEntry));
  uint64_t end = offset;
  for (const std::span<const std::byte> matrix : matrices_) {
    entries.push_back({.offset = offset,
                       .bytes = matrix.size(),
                       .checksum = XXH3_64bits(matrix.data(), matrix.size())});
    for (size_t at = 0; at < matrix.size(); at += kWriteBytes) {
      if (stopping_) return absl::CancelledError("");
      const size_t size = std::min(kWriteBytes, matrix.size() - at);
      LYNX_RETURN_IF_ERROR(WriteAt(fd, offset + at, matrix.subspan(at, size)));
    }
    end = offset + matrix.size();
    offset = Aligned(end);
  }
  PackedFileHeader header{.key = name_.Key(),
                          .file_bytes = end,
                          .version = kVersion,
                          .num_matrices = static_cast<uint32_t>(entries.size())};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.checksum = TableChecksum(header, entries);
  LYNX_RETURN_IF_ERROR(WriteAt(fd, 0, std::as_bytes(std::span(&header, 1))));
  LYNX_RETURN_IF_ERROR(WriteAt(fd, sizeof(header), std::as_bytes(std::span(entries))));
  return fsync(fd) == 0 ? absl::OkStatus() : Error();
}

}  // namespace lynx
