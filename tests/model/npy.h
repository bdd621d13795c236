// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct Npy {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// A NumPy 1.0 file of little-endian float32 in C order; aborts on anything else.
inline Npy ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream contents;
  contents << file.rdbuf();
  const std::string bytes = contents.str();
  constexpr size_t kPrefix = 10;  // magic, version, header length
  LYNX_CHECK(bytes.size() > kPrefix && bytes.compare(0, 6, "\x93NUMPY") == 0);
  uint16_t header_length;
  std::memcpy(&header_length, bytes.data() + 8, sizeof(header_length));
  const std::string header = bytes.substr(kPrefix, header_length);
  LYNX_CHECK(header.find("'<f4'") != std::string::npos);
  Npy npy;
  size_t count = 1;
  std::stringstream shape(header.substr(header.find('(', header.find("'shape'")) + 1));
  for (int64_t extent; shape >> extent; shape.ignore()) {
    npy.shape.push_back(extent);
    count *= extent;
  }
  LYNX_CHECK(bytes.size() == kPrefix + header_length + count * sizeof(float));
  npy.values.resize(count);
  std::memcpy(npy.values.data(), bytes.data() + kPrefix + header_length, count * sizeof(float));
  return npy;
}

}  // namespace lynx
