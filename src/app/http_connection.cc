// SPDX-License-Identifier: Apache-2.0
#include "app/http_connection.h"

#include <exception>
#include <memory>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core/error.hpp"
#include "boost/system/system_error.hpp"

namespace lynx {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::asio::use_awaitable;
constexpr auto kTuple = asio::as_tuple(use_awaitable);
// Of what is read but not yet understood: Beast takes trailers of any length and throws, where
// nobody can catch it, when a field has 64 KiB.
constexpr size_t kMaxBufferBytes = 60 << 10;

http::request<http::string_body> MakeMessage(const HttpRequest& request) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(request.method);
  message.target(request.target);
  message.set(http::field::host, absl::StrCat(request.host, ":", request.port));
  message.keep_alive(request.keep_alive);
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  if (!request.request_id.empty()) message.set("X-Request-Id", request.request_id);
  if (!request.api_key.empty()) {
    message.set(http::field::authorization, "Bearer " + request.api_key);
  }
  message.body() = request.body;
  message.prepare_payload();
  return message;
}

}  // namespace

asio::awaitable<absl::StatusOr<HttpResponse>> HttpConnection::Send(const HttpRequest& request,
                                                                   const HttpDataSink& on_data) {
  HttpResponse response;
  std::string failure;
  try {
    co_await Exchange(request, on_data, &response);
    co_return response;
  } catch (const boost::system::system_error& e) {
    failure = e.code().message();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  stream_.close();
  co_return absl::UnavailableError(absl::StrCat(request.host, ":", request.port, ": ", failure));
}

asio::awaitable<void> HttpConnection::Exchange(const HttpRequest& request,
                                               const HttpDataSink& on_data,
                                               HttpResponse* response) {
  stream_.expires_after(request.timeout);
  const auto message = MakeMessage(request);
  beast::flat_buffer buffer(kMaxBufferBytes);
  auto parser = std::make_unique<Parser>();
  const bool is_reused = IsOpen();
  if (!is_reused) co_await Connect(request);
  boost::system::error_code ec = co_await SendAndReadHead(message, buffer, *parser);
  if (ec && is_reused && !parser->got_some() && ec != beast::error::timeout) {
    parser = std::make_unique<Parser>();
    co_await Connect(request);
    ec = co_await SendAndReadHead(message, buffer, *parser);
  }
  if (ec) throw boost::system::system_error(ec);

  response->status = static_cast<int>(parser->get().result_int());
  while (!parser->is_done()) {
    stream_.expires_after(request.timeout);
    co_await http::async_read_some(stream_, buffer, *parser, use_awaitable);
    if (on_data && response->status == 200) {
      on_data(parser->get().body());
      parser->get().body().clear();
    }
  }
  response->body = std::move(parser->get().body());
  if (!request.keep_alive || !parser->get().keep_alive()) stream_.close();
}

asio::awaitable<boost::system::error_code> HttpConnection::SendAndReadHead(
    const Message& message, beast::flat_buffer& buffer, Parser& parser) {
  parser.body_limit(boost::none);
  auto [write_error, written] = co_await http::async_write(stream_, message, kTuple);
  if (write_error) co_return write_error;
  auto [read_error, read] = co_await http::async_read_header(stream_, buffer, parser, kTuple);
  co_return read_error;
}

asio::awaitable<void> HttpConnection::Connect(const HttpRequest& request) {
  stream_.close();
  asio::ip::tcp::resolver resolver(stream_.get_executor());
  const auto addresses =
      co_await resolver.async_resolve(request.host, std::to_string(request.port), use_awaitable);
  stream_.expires_after(request.timeout);
  co_await stream_.async_connect(addresses, use_awaitable);
  stream_.socket().set_option(asio::ip::tcp::no_delay(true));
}

// Whether the server has left the connection open since the last answer.
bool HttpConnection::IsOpen() {
  asio::ip::tcp::socket& socket = stream_.socket();
  if (!socket.is_open()) return false;
  boost::system::error_code ec;
  socket.non_blocking(true, ec);
  char byte;
  socket.receive(asio::buffer(&byte, 1), asio::ip::tcp::socket::message_peek, ec);
  return ec == asio::error::would_block;
}

}  // namespace lynx
