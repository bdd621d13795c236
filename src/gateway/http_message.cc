// SPDX-License-Identifier: Apache-2.0
#include "gateway/http_message.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace lynx {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

HttpResponse JsonResponse(std::string body) {
  return {.content_type = "application/json", .body = std::move(body)};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status,
                        .content_type = "application/json",
                        .body = ErrorBody(error),
                        .close = error.close};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexValue(text[i + 1]) >= 0 &&
        HexValue(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(HexValue(text[i + 1]) * 16 + HexValue(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string CleanRequestId(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (out.size() == 128) break;
    if (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == ':' || c == '-') out.push_back(c);
  }
  return out;
}

std::string RandomHexId() {
  std::random_device entropy;
  return absl::StrFormat("%08x%08x%08x%08x", entropy(), entropy(), entropy(), entropy());
}

}  // namespace lynx
