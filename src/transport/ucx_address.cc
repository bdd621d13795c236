// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx_address.h"

#include <cstring>

namespace lynx {
namespace {

constexpr uint32_t kMagic = 0x5558594c;  // "LYXU"
constexpr uint16_t kVersion = 1;

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void PutPorts(std::string& out, const std::set<uint16_t>& ports) {
  Put(out, static_cast<uint16_t>(ports.size()));
  for (uint16_t port : ports) Put(out, port);
}

void PutBytes(std::string& out, const std::string& bytes) {
  Put(out, static_cast<uint32_t>(bytes.size()));
  out += bytes;
}

// Takes from the front; false when there is not enough.
template <typename T>
bool Get(std::string_view& in, T& value) {
  if (in.size() < sizeof(T)) return false;
  std::memcpy(&value, in.data(), sizeof(T));
  in.remove_prefix(sizeof(T));
  return true;
}

bool GetPorts(std::string_view& in, std::set<uint16_t>& ports) {
  uint16_t count = 0;
  if (!Get(in, count)) return false;
  for (; count > 0; --count) {
    uint16_t port = 0;
    if (!Get(in, port)) return false;
    ports.insert(port);
  }
  return true;
}

bool GetBytes(std::string_view& in, std::string& bytes) {
  uint32_t size = 0;
  if (!Get(in, size) || size == 0 || size > in.size()) return false;
  bytes = in.substr(0, size);
  in.remove_prefix(size);
  return true;
}

}  // namespace

std::string UcxAddress::Pack() const {
  std::string out;
  Put(out, kMagic);
  Put(out, kVersion);
  Put(out, epoch);
  PutPorts(out, control_ports);
  PutPorts(out, bulk_ports);
  PutBytes(out, control);
  PutBytes(out, bulk);
  return out;
}

absl::StatusOr<UcxAddress> UcxAddress::Parse(std::string_view in) {
  const size_t size = in.size();
  uint32_t magic = 0;
  uint16_t version = 0;
  if (!Get(in, magic) || magic != kMagic || !Get(in, version)) {
    return absl::InvalidArgumentError(absl::StrCat("no UCX transport address (", size, " bytes)"));
  }
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX transport address of version ", version, ", want ", kVersion));
  }
  UcxAddress address;
  if (!Get(in, address.epoch) || !GetPorts(in, address.control_ports) ||
      !GetPorts(in, address.bulk_ports) || !GetBytes(in, address.control) ||
      !GetBytes(in, address.bulk) || !in.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("damaged UCX transport address (", size, " bytes)"));
  }
  return address;
}

}  // namespace lynx
