// SPDX-License-Identifier: Apache-2.0
// One HTTP request and its answer, as everything behind the connection sees them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gateway/api_error.h"

namespace lynx {

struct HttpRequest {
  std::string method;
  std::string path;        // percent-decoded, without query
  std::string request_id;  // the client's X-Request-Id, cleaned, or a fresh one
  std::string content_type;
  std::string authorization;
  std::string body;
  int64_t arrival_ns = 0;  // monotonic
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  // empty: no such header
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool close = false;
};

HttpResponse JsonResponse(std::string body);
HttpResponse ErrorResponse(const ApiError& error);

// "%2F" -> "/"; a broken escape stays as it is.
std::string PercentDecode(std::string_view text);
// Keeps letters, digits and "._:-", at most 128 of them; empty when nothing is left.
std::string CleanRequestId(std::string_view text);
// 32 random hexadecimal digits.
std::string RandomHexId();

}  // namespace lynx
