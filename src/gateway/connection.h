// SPDX-License-Identifier: Apache-2.0
// One client's TCP connection: requests are read, routed and answered one after the other. A client
// that closes its sending side counts as gone: what runs for it is cancelled.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/thread_pool.hpp"
#include "gateway/byte_budget.h"
#include "gateway/openai_service.h"

namespace lynx {

// What all connections share.
struct ConnectionContext {
  OpenAiService& service;
  boost::asio::thread_pool& workers;  // parsing, templates, tokenizing
  const GatewayLimits limits;
  const std::vector<std::string> allowed_origins;
  ByteBudget& body_memory;
};

// Any thread. The coroutine that serves the socket owns the object.
class Connection {
 public:
  virtual ~Connection() = default;
  // Closes it now when it is idle, else after the answer that is being made.
  virtual void Drain() = 0;
  // Ends a running generation with an error, then closes.
  virtual void Abort() = 0;

  // Starts serving on the socket's executor, a strand. `on_close` is called there at the end.
  static std::shared_ptr<Connection> Start(boost::asio::ip::tcp::socket socket,
                                           const ConnectionContext& context,
                                           std::function<void(Connection*)> on_close);
};

}  // namespace lynx
