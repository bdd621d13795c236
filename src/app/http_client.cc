// SPDX-License-Identifier: Apache-2.0
#include "app/http_client.h"

#include <charconv>
#include <exception>

#include "app/http_connection.h"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/io_context.hpp"

namespace lynx {

absl::StatusOr<HttpResponse> SendHttp(const HttpRequest& request, const HttpDataSink& on_data) {
  boost::asio::io_context io;
  HttpConnection connection(io.get_executor());
  absl::StatusOr<HttpResponse> response = absl::InternalError("no answer");
  boost::asio::co_spawn(io, connection.Send(request, on_data),
                        [&](std::exception_ptr, absl::StatusOr<HttpResponse> answer) {
                          response = std::move(answer);
                        });
  io.run();
  return response;
}

absl::Status ParseUrl(const std::string& url, std::string* host, int* port) {
  const bool has_scheme = url.starts_with("http://");
  std::string rest = has_scheme ? url.substr(7) : url;
  rest = rest.substr(0, rest.find('/'));
  const size_t colon = rest.rfind(':');
  *host = rest.substr(0, colon);
  *port = 80;
  if (colon != std::string::npos) {
    const char* end = rest.data() + rest.size();
    const auto parsed = std::from_chars(rest.data() + colon + 1, end, *port);
    const bool is_port = parsed.ec == std::errc() && parsed.ptr == end && *port > 0;
    if (!is_port || *port > 65535) host->clear();
  }
  const bool is_bare_word = !has_scheme && colon == std::string::npos;
  if (host->empty() || is_bare_word || url.starts_with("https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", url, "' is not a URL such as http://127.0.0.1:8000"));
  }
  return absl::OkStatus();
}

bool ReadinessProbe::Check(const std::string& host, int port, std::chrono::milliseconds interval) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < interval) return ready_;
  HttpRequest request;
  request.host = host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
  request.port = port;
  request.target = "/ready";
  request.timeout = std::chrono::milliseconds(500);
  const auto response = SendHttp(request);
  ready_ = response.ok() && response->status == 200;
  last_ = now;
  return ready_;
}

}  // namespace lynx
