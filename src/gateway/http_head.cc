// SPDX-License-Identifier: Apache-2.0
#include "gateway/http_head.h"

#include <ctime>

#include "gateway/str_cat.h"

namespace lynx {
namespace {

std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[64];
  return std::string(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc));
}

bool HasLineEnd(std::string_view text) { return text.find_first_of("\r\n") != text.npos; }

}  // namespace

std::string SerializeHead(const ResponseHead& head) {
  std::string out = StrCat(head.is_http10 ? "HTTP/1.0 " : "HTTP/1.1 ", head.status, " ",
                           head.reason, "\r\nDate: ", HttpDate(), "\r\nServer: lynx\r\n");
  if (!head.content_type.empty()) StrAppend(&out, "Content-Type: ", head.content_type, "\r\n");
  if (head.content_length) {
    StrAppend(&out, "Content-Length: ", *head.content_length, "\r\n");
  } else if (!head.is_http10) {
    StrAppend(&out, "Transfer-Encoding: chunked\r\n");
  }
  for (const auto& [name, value] : head.headers) StrAppend(&out, name, ": ", value, "\r\n");
  StrAppend(&out, "Connection: ", head.keep_alive ? "keep-alive" : "close", "\r\n\r\n");
  return out;
}

std::string Chunk(std::string_view data) {
  if (data.empty()) return "";
  return StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n");
}

std::vector<std::pair<std::string, std::string>> CorsHeaders(
    std::string_view origin, std::string_view wanted_headers,
    const std::vector<std::string>& allowed_origins) {
  if (origin.empty() || HasLineEnd(origin)) return {};
  std::string headers = "Authorization, Content-Type, X-Request-Id";
  if (!wanted_headers.empty() && !HasLineEnd(wanted_headers)) headers = wanted_headers;
  for (const std::string& allowed : allowed_origins) {
    if (allowed != "*" && allowed != origin) continue;
    return {{"Access-Control-Allow-Origin", allowed == "*" ? "*" : std::string(origin)},
            {"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
            {"Access-Control-Allow-Headers", headers},
            {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
            {"Access-Control-Max-Age", "600"},
            {"Vary", "Origin"}};
  }
  return {};
}

}  // namespace lynx
