// SPDX-License-Identifier: Apache-2.0
#include "gateway/gateway.h"

#include <algorithm>
#include <thread>
#include <unordered_map>
#include <utility>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/strand.hpp"
#include "boost/asio/thread_pool.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "gateway/connection.h"
#include "gateway/http_head.h"
#include "gateway/openai_service.h"
#include "spdlog/spdlog.h"

namespace lynx {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kPollInterval{20};
constexpr std::chrono::milliseconds kAcceptRetry{50};  // no file descriptors left
constexpr std::chrono::seconds kCloseTimeout{5};       // for last bytes after an abort

class HttpGateway final : public Gateway {
 public:
  HttpGateway(GatewayOptions options, Generator& generator, const Tokenizer& tokenizer,
              const ChatTemplate* chat_template, const ModelCard& card)
      : options_(std::move(options)),
        service_(options_, generator, tokenizer, chat_template, card),
        workers_(static_cast<size_t>(options_.num_worker_threads)),
        io_(options_.num_io_threads),
        control_(asio::make_strand(io_)),
        acceptor_(control_),
        timer_(control_),
        connection_context_{service_, workers_, options_.limits, options_.allowed_origins,
                            body_memory_} {}

  ~HttpGateway() override {
    io_.stop();
    workers_.join();
  }

  absl::Status Listen();
  int port() const override { return port_; }
  void Run() override;
  void Shutdown(ShutdownMode mode) override;

 private:
  asio::awaitable<void> Accept();
  asio::awaitable<void> Drain();
  asio::awaitable<void> Sleep(Clock::duration duration);
  void Serve(tcp::socket socket);
  void RunIo();
  void ForEachConnection(void (Connection::*action)());

  const GatewayOptions options_;
  OpenAiService service_;
  asio::thread_pool workers_;
  asio::io_context io_;
  asio::strand<asio::io_context::executor_type> control_;  // everything below
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  ByteBudget body_memory_{options_.limits.max_pending_body_bytes};
  const ConnectionContext connection_context_;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections_;
  bool is_draining_ = false;
  bool is_stopping_now_ = false;
  int port_ = 0;
};

absl::Status HttpGateway::Listen() {
  error_code ec;
  tcp::resolver resolver(io_);
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) {
    return absl::InvalidArgumentError(
        StrCat("cannot resolve host ", options_.host, ": ", ec.message()));
  }
  // A name may have addresses of both kinds (localhost): clients that know one know the IPv4 one.
  const auto ipv4 = std::find_if(found.begin(), found.end(), [](const auto& entry) {
    return entry.endpoint().address().is_v4();
  });
  const tcp::endpoint endpoint = (ipv4 != found.end() ? ipv4 : found.begin())->endpoint();
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    return absl::UnavailableError(
        StrCat("cannot listen on ", options_.host, ":", options_.port, ": ", ec.message()));
  }
  port_ = acceptor_.local_endpoint(ec).port();
  return absl::OkStatus();
}

void HttpGateway::Run() {
  asio::co_spawn(
      control_, [this] { return Accept(); }, asio::detached);
  std::vector<std::jthread> threads;
  for (int i = 1; i < options_.num_io_threads; ++i) threads.emplace_back([this] { RunIo(); });
  RunIo();
}

// An exception out of a library's handler ends the connection that it was of, not the server.
void HttpGateway::RunIo() {
  while (true) {
    try {
      io_.run();
      return;
    } catch (const std::exception& e) {
      spdlog::error("gateway: a connection was dropped: {}", e.what());
    }
  }
}

asio::awaitable<void> HttpGateway::Accept() {
  while (acceptor_.is_open()) {
    tcp::socket socket(asio::make_strand(io_));
    auto [ec] = co_await acceptor_.async_accept(socket, kTuple);
    if (!ec) {
      Serve(std::move(socket));
    } else if (acceptor_.is_open()) {
      asio::steady_timer retry(control_, kAcceptRetry);
      co_await retry.async_wait(kTuple);
    }
  }
}

void HttpGateway::Serve(tcp::socket socket) {
  if (connections_.size() >= static_cast<size_t>(options_.limits.max_num_connections)) {
    service_.metrics().CountRejection("max_num_connections");
    error_code ignored;
    const std::string body = ErrorBody(Unavailable("too many connections"));
    const std::string bytes = SerializeHead({.status = 503,
                                             .reason = "Service Unavailable",
                                             .content_type = "application/json",
                                             .keep_alive = false,
                                             .content_length = body.size(),
                                             .headers = {{"Retry-After", "1"}}}) +
                              body;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(bytes), ignored);
    return;
  }
  auto connection =
      Connection::Start(std::move(socket), connection_context_, [this](Connection* closed) {
        asio::post(control_, [this, closed] { connections_.erase(closed); });
      });
  connections_[connection.get()] = connection;
}

void HttpGateway::ForEachConnection(void (Connection::*action)()) {
  for (const auto& [key, weak] : connections_) {
    if (auto connection = weak.lock()) (connection.get()->*action)();
  }
}

void HttpGateway::Shutdown(ShutdownMode mode) {
  asio::post(control_, [this, mode] {
    if (mode == ShutdownMode::kNow) {
      is_stopping_now_ = true;
      timer_.cancel();
    }
    if (std::exchange(is_draining_, true)) return;
    asio::co_spawn(
        control_, [this] { return Drain(); }, asio::detached);
  });
}

asio::awaitable<void> HttpGateway::Sleep(Clock::duration duration) {
  timer_.expires_after(duration);
  co_await timer_.async_wait(kTuple);
}

asio::awaitable<void> HttpGateway::Drain() {
  service_.set_state(ServingState::kLeaving);
  if (!is_stopping_now_ && options_.drain_grace.count() > 0) co_await Sleep(options_.drain_grace);
  service_.set_state(ServingState::kDraining);
  ForEachConnection(&Connection::Drain);
  const auto deadline = Clock::now() + options_.shutdown_timeout;
  while (service_.num_generating() > 0 && !is_stopping_now_ && Clock::now() < deadline) {
    co_await Sleep(kPollInterval);
  }
  error_code ignored;
  acceptor_.close(ignored);
  ForEachConnection(&Connection::Abort);
  ForEachConnection(&Connection::Drain);
  const auto close_deadline = Clock::now() + kCloseTimeout;
  while (!connections_.empty() && Clock::now() < close_deadline) co_await Sleep(kPollInterval);
  io_.stop();
}

absl::Status CheckOptions(const GatewayOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(StrCat("port: ", options.port, " is not in 0..65535"));
  }
  if (options.num_io_threads < 1 || options.num_worker_threads < 1) {
    return absl::InvalidArgumentError("the gateway needs at least one I/O and one worker thread");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Create(GatewayOptions options,
                                                         Generator& generator,
                                                         const Tokenizer& tokenizer,
                                                         const ChatTemplate* chat_template,
                                                         const ModelCard& card) {
  LYNX_RETURN_IF_ERROR(CheckOptions(options));
  auto gateway =
      std::make_unique<HttpGateway>(std::move(options), generator, tokenizer, chat_template, card);
  LYNX_RETURN_IF_ERROR(gateway->Listen());
  return gateway;
}

}  // namespace lynx
