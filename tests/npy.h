// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "lynx/status.h"

namespace lynx {

template <typename T>
struct Npy {
  std::vector<int64_t> shape;
  std::vector<T> values;
};

// A NumPy 1.0 file of little-endian float32, float64 or bytes in C order; aborts on anything else.
template <typename T = float>
Npy<T> ReadNpy(const std::string& path) {
  static_assert(std::is_floating_point_v<T> || std::is_same_v<T, uint8_t>);
  const std::string type =
      std::is_floating_point_v<T> ? absl::StrCat("'<f", sizeof(T), "'") : std::string("'|u1'");
  std::ifstream file(path, std::ios::binary);
  std::stringstream contents;
  contents << file.rdbuf();
  const std::string bytes = contents.str();
  constexpr size_t kPrefix = 10;  // magic, version, header length
  LYNX_CHECK(bytes.size() > kPrefix && bytes.compare(0, 6, "\x93NUMPY") == 0);
  uint16_t header_length;
  std::memcpy(&header_length, bytes.data() + 8, sizeof(header_length));
  const std::string header = bytes.substr(kPrefix, header_length);
  LYNX_CHECK(header.find(type) != std::string::npos);
  Npy<T> npy;
  size_t count = 1;
  std::stringstream shape(header.substr(header.find('(', header.find("'shape'")) + 1));
  for (int64_t extent; shape >> extent; shape.ignore()) {
    npy.shape.push_back(extent);
    count *= extent;
  }
  LYNX_CHECK(bytes.size() == kPrefix + header_length + count * sizeof(T));
  npy.values.resize(count);
  std::memcpy(npy.values.data(), bytes.data() + kPrefix + header_length, count * sizeof(T));
  return npy;
}

}  // namespace lynx
