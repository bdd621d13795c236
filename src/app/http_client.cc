// SPDX-License-Identifier: Apache-2.0
#include "app/http_client.h"

#include <charconv>
#include <exception>

#include "boost/asio/awaitable.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "boost/system/system_error.hpp"

namespace lynx {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::asio::use_awaitable;

http::request<http::string_body> MakeRequest(const HttpRequest& request) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(request.method);
  message.target(request.target);
  message.set(http::field::host, absl::StrCat(request.host, ":", request.port));
  message.set(http::field::connection, "close");
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  if (!request.api_key.empty()) {
    message.set(http::field::authorization, "Bearer " + request.api_key);
  }
  message.body() = request.body;
  message.prepare_payload();
  return message;
}

asio::awaitable<void> Exchange(const HttpRequest& request,
                               const std::function<void(std::string_view)>& on_data,
                               HttpResponse* response) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  asio::ip::tcp::resolver resolver(stream.get_executor());
  const auto addresses =
      co_await resolver.async_resolve(request.host, std::to_string(request.port), use_awaitable);
  stream.expires_after(request.timeout);
  co_await stream.async_connect(addresses, use_awaitable);
  const auto message = MakeRequest(request);
  co_await http::async_write(stream, message, use_awaitable);

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  co_await http::async_read_header(stream, buffer, parser, use_awaitable);
  response->status = static_cast<int>(parser.get().result_int());
  while (!parser.is_done()) {
    stream.expires_after(request.timeout);
    co_await http::async_read_some(stream, buffer, parser, use_awaitable);
    if (on_data && response->status == 200) {
      on_data(parser.get().body());
      parser.get().body().clear();
    }
  }
  response->body = std::move(parser.get().body());
}

}  // namespace

absl::StatusOr<HttpResponse> SendHttp(const HttpRequest& request,
                                      const std::function<void(std::string_view)>& on_data) {
  HttpResponse response;
  asio::io_context io;
  std::exception_ptr failure;
  asio::co_spawn(io, Exchange(request, on_data, &response),
                 [&](std::exception_ptr e) { failure = e; });
  try {
    io.run();
    if (failure) std::rethrow_exception(failure);
  } catch (const boost::system::system_error& e) {
    return absl::UnavailableError(
        absl::StrCat(request.host, ":", request.port, ": ", e.code().message()));
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(request.host, ":", request.port, ": ", e.what()));
  }
  return response;
}

absl::Status ParseUrl(const std::string& url, std::string* host, int* port) {
  std::string rest = url;
  if (rest.rfind("http://", 0) == 0) rest = rest.substr(7);
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
  if (host->empty() || url.find("https://") == 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' is not http://host:port"));
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
