// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "app/http_client.h"
#include "boost/asio/any_io_executor.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http.hpp"

namespace lynx {

// A client's connection of HTTP/1.1 without TLS, for coroutines of one thread. It stays open
// between requests that say keep_alive, as long as the server likes. A server may close it just as
// the next request is on its way (llama-server does after every stream): a request whose reused
// connection ends before any byte of an answer is sent once more, over a new one.
class HttpConnection {
 public:
  explicit HttpConnection(boost::asio::any_io_executor executor) : stream_(std::move(executor)) {}
  HttpConnection(const HttpConnection&) = delete;

  // Sends a request, over a new connection unless one is open, and reads the answer. One at a
  // time; both arguments must outlive it. on_data is SendHttp's.
  boost::asio::awaitable<absl::StatusOr<HttpResponse>> Send(const HttpRequest& request,
                                                            const HttpDataSink& on_data);

 private:
  using Message = boost::beast::http::request<boost::beast::http::string_body>;
  using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;

  boost::asio::awaitable<void> Exchange(const HttpRequest& request, const HttpDataSink& on_data,
                                        HttpResponse* response);
  boost::asio::awaitable<boost::system::error_code> SendAndReadHead(
      const Message& message, boost::beast::flat_buffer& buffer, Parser& parser);
  boost::asio::awaitable<void> Connect(const HttpRequest& request);
  bool IsOpen();

  boost::beast::tcp_stream stream_;
};

}  // namespace lynx
