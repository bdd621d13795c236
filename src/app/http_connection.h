// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "app/http_client.h"
#include "boost/asio/any_io_executor.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/beast/core/tcp_stream.hpp"

namespace lynx {

// A client's connection of HTTP/1.1 without TLS, for coroutines of one thread. It stays open
// between requests that say keep_alive, as long as the server likes.
class HttpConnection {
 public:
  explicit HttpConnection(boost::asio::any_io_executor executor) : stream_(std::move(executor)) {}
  HttpConnection(const HttpConnection&) = delete;

  // Sends a request, over a new connection unless one is open, and reads the answer. One at a
  // time; both arguments must outlive it. on_data is SendHttp's.
  boost::asio::awaitable<absl::StatusOr<HttpResponse>> Send(const HttpRequest& request,
                                                            const HttpDataSink& on_data);

 private:
  boost::asio::awaitable<void> Exchange(const HttpRequest& request, const HttpDataSink& on_data,
                                        HttpResponse* response);
  boost::asio::awaitable<void> Connect(const HttpRequest& request);
  bool IsOpen();

  boost::beast::tcp_stream stream_;
};

}  // namespace lynx
