// SPDX-License-Identifier: Apache-2.0
// The bytes of a response's head.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lynx {

struct ResponseHead {
  int status = 200;
  std::string_view reason;  // the standard phrase
  std::string_view content_type;
  bool is_http10 = false;
  bool keep_alive = true;
  std::optional<size_t> content_length;  // empty: chunked, or until close for HTTP/1.0
  std::vector<std::pair<std::string, std::string>> headers;
};

std::string SerializeHead(const ResponseHead& head);

// One chunk of the chunked coding; empty data would end the body, so it yields nothing.
std::string Chunk(std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// The headers of CORS for a request from `origin`, none when it is not allowed. A preflight's
// `wanted_headers` are all allowed: OpenAI's clients send many (X-Stainless-…).
std::vector<std::pair<std::string, std::string>> CorsHeaders(
    std::string_view origin, std::string_view wanted_headers,
    const std::vector<std::string>& allowed_origins);

}  // namespace lynx
