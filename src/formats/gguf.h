// SPDX-License-Identifier: Apache-2.0
// Metadata and tensor table of GGUF, versions 2 and 3, checked against the size of the file before
// anything is believed. Format: ggml/docs/gguf.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lynx/backend.h"
#include "lynx/status.h"

namespace lynx {

// One metadata value. Integers widen to int64/uint64, floats to double; arrays are homogeneous.
struct GgufValue {
  std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<std::string>,
               std::vector<int64_t>, std::vector<double>>
      value;
};

struct GgufTensor {
  std::string name;  // ggml's name, "blk.0.attn_q.weight"
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;  // outermost first
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::string file;  // the path of the file that holds it
};

// A model of several files (llama.cpp's gguf-split: NAME-00001-of-00003.gguf …) is opened by its
// first one, whose metadata counts, and has the tensors of all.
class GgufFile {
 public:
  // kInvalidArgument with one line "FILE: FIELD: reason".
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  virtual ~GgufFile() = default;
  virtual const std::string& path() const = 0;
  virtual const GgufValue* Find(std::string_view key) const = 0;
  // kInvalidArgument "FILE: KEY: missing / is a string, want …".
  virtual absl::StatusOr<std::string> String(std::string_view key) const = 0;
  virtual absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const = 0;
  virtual absl::StatusOr<double> Float(std::string_view key) const = 0;
  virtual absl::StatusOr<const std::vector<std::string>*> Strings(std::string_view key) const = 0;
  virtual absl::StatusOr<const std::vector<int64_t>*> Ints(std::string_view key) const = 0;
  virtual const std::vector<GgufTensor>& tensors() const = 0;  // in file order
};

}  // namespace lynx
