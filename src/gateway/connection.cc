// SPDX-License-Identifier: Apache-2.0
#include "gateway/connection.h"

#include <optional>
#include <tuple>
#include <utility>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/read.hpp"
#include "boost/beast/http/string_body.hpp"
#include "core/clock.h"
#include "gateway/http_head.h"
#include "spdlog/spdlog.h"

namespace lynx {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
template <typename T>
using Task = asio::awaitable<T>;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 4096;
// Bytes that a client may send ahead while an answer is being made. The socket is watched only
// while there is room for them.
constexpr size_t kMaxEarlyBytes = 32 << 10;
// Of what is read but not yet understood. Beast takes trailers of any length and throws, where
// nobody can catch it, when a field has 64 KiB; with this it never sees one.
constexpr size_t kMaxBufferBytes = 60 << 10;
// How long and how much is still read after a refusal, so that the client gets to see it.
constexpr std::chrono::seconds kLingerTime{3};
constexpr size_t kMaxLingerBytes = 256u << 20;

// Lets a coroutine on a strand wait for news from any thread.
class Notifier : public std::enable_shared_from_this<Notifier> {
 public:
  explicit Notifier(asio::any_io_executor strand) : strand_(strand), timer_(strand) {}

  void NotifyFromAnyThread() {
    asio::post(strand_, [self = shared_from_this()] { self->Notify(); });
  }
  void Notify() {
    has_news_ = true;
    timer_.cancel();
  }
  // Until there is news, or the monotonic clock says `until_ns`.
  Task<void> Wait(std::optional<int64_t> until_ns = std::nullopt) {
    if (!has_news_) {
      using TimePoint = asio::steady_timer::time_point;
      timer_.expires_at(until_ns ? TimePoint(std::chrono::nanoseconds(*until_ns))
                                 : TimePoint::max());
      co_await timer_.async_wait(kTuple);
    }
    has_news_ = false;
  }

 private:
  asio::any_io_executor strand_;
  asio::steady_timer timer_;
  bool has_news_ = false;
};

class BeastConnection final : public Connection,
                              public std::enable_shared_from_this<BeastConnection> {
 public:
  BeastConnection(asio::ip::tcp::socket socket, const ConnectionContext& context)
      : context_(context),
        stream_(std::move(socket)),
        news_(std::make_shared<Notifier>(stream_.get_executor())) {}

  void Drain() override {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      self->is_draining_ = true;
      if (self->is_idle_) self->stream_.close();
    });
  }

  void Abort() override {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      self->is_draining_ = self->is_aborted_ = true;
      self->news_->Notify();
    });
  }

  Task<void> Serve() {
    error_code ignored;
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    stream_.socket().non_blocking(true, ignored);
    while (co_await ServeOne() && !is_draining_) {
    }
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  // The request that is being answered.
  struct Exchange {
    HttpRequest request;
    RouteMatch match;
    std::string origin;
    std::string wanted_headers;  // of a preflight
    bool is_http10 = false;
    bool keep_alive = false;
    bool is_head = false;
    int64_t started_ns = 0;
  };

  Task<bool> ServeOne();
  Task<bool> WaitForRequest();
  Task<bool> Refuse(const Exchange& exchange, ApiError error);
  Task<bool> RefuseUnreadable(error_code ec);
  Task<MaybeError> ReadBody(Parser* parser, Exchange* exchange, ByteBudget::Share* memory);
  Task<bool> AnswerSmall(Exchange exchange);
  Task<bool> AnswerGenerating(Exchange exchange, ByteBudget::Share* body_memory);
  Task<bool> RunSession(const Exchange& exchange, GenerationPlan plan);
  Task<bool> SendStreamPart(const Exchange& exchange, GenerationSession::Step step, bool is_first);
  Task<bool> Send(const Exchange& exchange, HttpResponse response);
  Task<bool> Write(std::string bytes);
  Task<void> Linger();
  template <typename Function>
  Task<void> OnWorker(Function function);

  void Watch();
  Task<void> StopWatching();

  Exchange ReadHead(const Parser& parser, int64_t arrival_ns) const;
  void SetCommonHeaders(const Exchange& exchange, ResponseHead* head) const;
  void Count(const Exchange& exchange, int status) const;

  const ConnectionContext& context_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxBufferBytes};
  std::shared_ptr<Notifier> news_;  // shared with wakeups on their way from an engine's thread
  bool is_idle_ = false;            // between requests
  bool is_draining_ = false;
  bool is_aborted_ = false;
  bool is_watching_ = false;
  bool is_client_gone_ = false;
};

bool HasBody(const http::request<http::string_body>& request) {
  return request.chunked() ||
         (request.has_content_length() && request[http::field::content_length] != "0");
}

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// "http://host/path?query" and "/path?query" -> "/path".
std::string_view PathOf(std::string_view target) {
  if (const size_t scheme = target.find("://");
      scheme != std::string_view::npos && target[0] != '/') {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find('?'));
}

BeastConnection::Exchange BeastConnection::ReadHead(const Parser& parser,
                                                    int64_t arrival_ns) const {
  const auto& head = parser.get();
  Exchange exchange;
  HttpRequest& request = exchange.request;
  request.method = View(head.method_string());
  request.path = PercentDecode(PathOf(View(head.target())));
  request.request_id = CleanRequestId(View(head["X-Request-Id"]));
  if (request.request_id.empty()) request.request_id = RandomHexId();
  request.content_type = View(head[http::field::content_type]);
  request.authorization = View(head[http::field::authorization]);
  request.arrival_ns = arrival_ns;
  exchange.origin = View(head[http::field::origin]);
  exchange.wanted_headers = View(head[http::field::access_control_request_headers]);
  exchange.is_http10 = head.version() < 11;
  exchange.keep_alive = head.keep_alive();
  exchange.is_head = head.method() == http::verb::head;
  exchange.match = MatchRoute(request.method, request.path);
  exchange.started_ns = arrival_ns;
  return exchange;
}

// Waits for the first bytes of a request. Empty lines before it are skipped (RFC 9112 2.2).
Task<bool> BeastConnection::WaitForRequest() {
  stream_.expires_after(context_.limits.idle_timeout);
  while (true) {
    const std::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
    if (bytes.starts_with("\r\n")) {
      buffer_.consume(2);
      continue;
    }
    if (!bytes.empty() && bytes != "\r") co_return true;
    is_idle_ = true;
    auto [ec, size] = co_await stream_.async_read_some(buffer_.prepare(kReadBytes), kTuple);
    is_idle_ = false;
    buffer_.commit(size);
    if (ec) co_return false;
  }
}

// Refuses what leaves open where the body ends (RFC 9112 6.1), and bodies in a coding.
MaybeError CheckCodings(const http::request<http::string_body>& head) {
  MaybeError error;
  const size_t num_codings = head.count(http::field::transfer_encoding);
  const std::string_view transfer = View(head[http::field::transfer_encoding]);
  const std::string_view content = View(head[http::field::content_encoding]);
  if (num_codings > 1 || (num_codings == 1 && head.version() < 11)) {
    error = HttpError(400, "Transfer-Encoding must be given once, and not in HTTP/1.0");
  } else if (num_codings == 1 && !beast::iequals(transfer, "chunked")) {
    error = HttpError(
        501, StrCat("Transfer-Encoding \"", transfer, "\" is not supported, only ", "\"chunked\""));
  } else if (!content.empty() && !beast::iequals(content, "identity")) {
    error = HttpError(415, StrCat("Content-Encoding \"", content, "\" is not supported"));
  }
  if (error) error->close = true;
  return error;
}

// False: the connection is over.
Task<bool> BeastConnection::ServeOne() {
  if (!co_await WaitForRequest()) co_return false;
  const int64_t arrival_ns = MonotonicNs();
  Parser parser;
  parser.header_limit(context_.limits.max_header_bytes);
  parser.body_limit(context_.limits.max_body_bytes);
  stream_.expires_after(context_.limits.header_timeout);
  auto [ec, size] = co_await http::async_read_header(stream_, buffer_, parser, kTuple);
  if (ec) co_return co_await RefuseUnreadable(ec);

  ByteBudget::Share body_memory(context_.body_memory);
  Exchange exchange = ReadHead(parser, arrival_ns);
  if (MaybeError error = CheckCodings(parser.get())) {
    co_return co_await Refuse(exchange, *std::move(error));
  }
  const bool is_preflight = exchange.request.method == "OPTIONS";
  if (!is_preflight) {
    if (MaybeError error = context_.service.Admit(exchange.match, exchange.request)) {
      error->close = error->close || HasBody(parser.get());
      co_return co_await Refuse(exchange, *std::move(error));
    }
  }
  if (MaybeError error = co_await ReadBody(&parser, &exchange, &body_memory)) {
    co_return co_await Refuse(exchange, *std::move(error));
  }
  stream_.expires_never();
  if (is_preflight) {
    HttpResponse empty;  // g++ 12 destroys an aggregate inside co_await twice
    co_return co_await Send(exchange, std::move(empty));
  }
  switch (exchange.match.route) {
    case Route::kCompletions:
    case Route::kChatCompletions:
    case Route::kHealthGenerate:
      co_return co_await AnswerGenerating(std::move(exchange), &body_memory);
    default:
      co_return co_await AnswerSmall(std::move(exchange));
  }
}

Task<MaybeError> BeastConnection::ReadBody(Parser* parser, Exchange* exchange,
                                           ByteBudget::Share* memory) {
  const std::string_view expect = View(parser->get()[http::field::expect]);
  if (!expect.empty()) {
    if (!beast::iequals(expect, "100-continue")) {
      ApiError error = HttpError(417, StrCat("Expect: ", expect, " is not supported"));
      error.close = true;
      co_return error;
    }
    if (!parser->is_done() && !co_await Write("HTTP/1.1 100 Continue\r\n\r\n")) {
      co_return HttpError(400, "the client has gone");
    }
  }
  stream_.expires_after(context_.limits.body_timeout);
  error_code ec;
  while (!ec && !parser->is_done()) {
    std::tie(ec, std::ignore) = co_await http::async_read_some(stream_, buffer_, *parser, kTuple);
    if (memory->Resize(parser->get().body().capacity())) continue;
    ApiError error = Unavailable("too many large request bodies at one time");
    error.close = true;
    co_return error;
  }
  exchange->request.body = std::move(parser->get().body());
  if (!ec) co_return std::nullopt;
  ApiError error = ec == http::error::body_limit
                       ? HttpError(413, StrCat("the body is larger than ",
                                               context_.limits.max_body_bytes, " bytes"))
                       : HttpError(400, StrCat("the body is malformed: ", ec.message()));
  error.close = true;
  co_return error;
}

// The header could not be read.
Task<bool> BeastConnection::RefuseUnreadable(error_code ec) {
  if (ec.category() != http::make_error_code(http::error::end_of_stream).category() ||
      ec == http::error::end_of_stream || ec == http::error::partial_message) {
    co_return false;
  }
  Exchange exchange;
  exchange.request.request_id = RandomHexId();
  exchange.request.method = "none";
  exchange.started_ns = MonotonicNs();
  ApiError error = HttpError(400, StrCat("malformed HTTP request: ", ec.message()));
  if (ec == http::error::header_limit) {
    error = HttpError(
        431, StrCat("the header is larger than ", context_.limits.max_header_bytes, " bytes"));
  }
  if (ec == http::error::body_limit) {
    error = HttpError(413, StrCat("the announced body is larger than ",
                                  context_.limits.max_body_bytes, " bytes"));
  }
  error.close = true;
  co_return co_await Refuse(exchange, std::move(error));
}

Task<bool> BeastConnection::Refuse(const Exchange& exchange, ApiError error) {
  HttpResponse response = ErrorResponse(error);
  if (error.status == 405) {
    response.headers.emplace_back("Allow", std::string(exchange.match.allow));
  }
  const bool stays = co_await Send(exchange, std::move(response));
  if (error.close) co_await Linger();
  co_return stays;
}

template <typename Function>
Task<void> BeastConnection::OnWorker(Function function) {
  co_await asio::co_spawn(
      context_.workers.get_executor(),
      [&function]() -> Task<void> {
        function();
        co_return;
      },
      asio::use_awaitable);
}

Task<bool> BeastConnection::AnswerSmall(Exchange exchange) {
  HttpResponse response;
  auto answer = [&] { response = context_.service.Answer(exchange.match, exchange.request); };
  if (exchange.match.takes_json) {
    co_await OnWorker(answer);
  } else {
    answer();
  }
  co_return co_await Send(exchange, std::move(response));
}

Task<bool> BeastConnection::AnswerGenerating(Exchange exchange, ByteBudget::Share* body_memory) {
  std::optional<OpenAiService::Ticket> ticket = context_.service.TryBegin();
  if (!ticket) {
    co_return co_await Refuse(
        exchange, FromStatus(absl::ResourceExhaustedError("too many requests at one time")));
  }
  GenerationPlan plan;
  MaybeError error;
  co_await OnWorker([&] {
    error = context_.service.Plan(exchange.match, exchange.request, &plan);
    exchange.request.body = std::string();
  });
  body_memory->Resize(0);
  if (error) co_return co_await Refuse(exchange, *std::move(error));
  co_return co_await RunSession(exchange, std::move(plan));
}

Task<bool> BeastConnection::RunSession(const Exchange& exchange, GenerationPlan plan) {
  GenerationSession session(std::move(plan), context_.service.session_context(),
                            [news = news_] { news->NotifyFromAnyThread(); });
  bool has_head = false;
  Watch();
  while (!is_client_gone_) {
    GenerationSession::Step step =
        is_aborted_ ? session.Abort(Unavailable("the server is shutting down")) : session.Advance();
    if (step.response) {
      co_await StopWatching();
      if (is_client_gone_) break;
      co_return co_await Send(exchange, *std::move(step.response));
    }
    const bool is_done = step.done;
    const bool has_failed = step.failed;
    if (!step.sse.empty()) {
      if (is_done) co_await StopWatching();
      if (!co_await SendStreamPart(exchange, std::move(step), !std::exchange(has_head, true)))
        break;
      session.Written(MonotonicNs());
    }
    if (is_done) {
      Count(exchange, 200);
      co_return exchange.keep_alive && !exchange.is_http10 && !is_draining_ && !has_failed;
    }
    co_await news_->Wait(session.wait_until_ns());
  }
  context_.service.metrics().CountDisconnect();
  Count(exchange, 499);
  co_await StopWatching();
  co_return false;
}

Task<bool> BeastConnection::SendStreamPart(const Exchange& exchange, GenerationSession::Step step,
                                           bool is_first) {
  std::string bytes;
  if (is_first) {
    ResponseHead head{.reason = "OK",
                      .content_type = "text/event-stream; charset=utf-8",
                      .is_http10 = exchange.is_http10,
                      .keep_alive = exchange.keep_alive && !exchange.is_http10 && !is_draining_,
                      .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
    SetCommonHeaders(exchange, &head);
    bytes = SerializeHead(head);
  }
  bytes += exchange.is_http10 ? step.sse : Chunk(step.sse);
  if (step.done && !exchange.is_http10) bytes += kLastChunk;
  co_return co_await Write(std::move(bytes));
}

void BeastConnection::SetCommonHeaders(const Exchange& exchange, ResponseHead* head) const {
  head->headers.emplace_back("X-Request-Id", exchange.request.request_id);
  for (auto& header :
       CorsHeaders(exchange.origin, exchange.wanted_headers, context_.allowed_origins)) {
    head->headers.push_back(std::move(header));
  }
}

Task<bool> BeastConnection::Send(const Exchange& exchange, HttpResponse response) {
  const bool keep_alive = exchange.keep_alive && !response.close && !is_draining_ &&
                          context_.service.state() != ServingState::kDraining;
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  ResponseHead head{.status = response.status,
                    .reason = View(reason),
                    .content_type = response.content_type,
                    .is_http10 = exchange.is_http10,
                    .keep_alive = keep_alive,
                    .content_length = response.body.size(),
                    .headers = std::move(response.headers)};
  SetCommonHeaders(exchange, &head);
  std::string bytes = SerializeHead(head);
  if (!exchange.is_head) bytes += response.body;
  const bool is_written = co_await Write(std::move(bytes));
  Count(exchange, response.status);
  if (!is_written) co_return false;
  co_return keep_alive;
}

// What the socket takes at once, as it does most events of a stream, needs no timer.
Task<bool> BeastConnection::Write(std::string bytes) {
  error_code ec;
  const size_t written = stream_.socket().write_some(asio::buffer(bytes), ec);
  if (written == bytes.size()) co_return true;
  if (ec && ec != asio::error::would_block) co_return false;
  stream_.expires_after(context_.limits.write_timeout);
  const auto rest = asio::buffer(bytes) + written;
  std::tie(ec, std::ignore) = co_await asio::async_write(stream_, asio::buffer(rest), kTuple);
  if (!ec) stream_.expires_never();
  co_return !ec;
}

// Closing with unread bytes would reset the connection and destroy the answer on its way.
Task<void> BeastConnection::Linger() {
  error_code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  stream_.expires_after(kLingerTime);
  buffer_.clear();
  for (size_t total = 0; total < kMaxLingerBytes;) {
    auto [ec, size] = co_await stream_.async_read_some(buffer_.prepare(kMaxBufferBytes), kTuple);
    if (ec) break;
    total += size;
  }
}

// Reads ahead while an answer is being made: the only way to see that the client has gone.
void BeastConnection::Watch() {
  if (buffer_.size() >= kMaxEarlyBytes) return;
  is_watching_ = true;
  stream_.socket().async_read_some(buffer_.prepare(kReadBytes),
                                   [self = shared_from_this()](error_code ec, size_t size) {
                                     self->is_watching_ = false;
                                     self->buffer_.commit(size);
                                     if (!ec) {
                                       self->Watch();
                                     } else if (ec != asio::error::operation_aborted) {
                                       self->is_client_gone_ = true;
                                     }
                                     self->news_->Notify();
                                   });
}

Task<void> BeastConnection::StopWatching() {
  while (is_watching_) {
    error_code ignored;
    stream_.socket().cancel(ignored);
    co_await news_->Wait();
  }
}

void BeastConnection::Count(const Exchange& exchange, int status) const {
  const std::string& method = exchange.request.method;
  const bool is_known = method == "GET" || method == "POST" || method == "HEAD" ||
                        method == "OPTIONS" || method == "PUT" || method == "DELETE";
  const double seconds = static_cast<double>(MonotonicNs() - exchange.started_ns) / 1e9;
  context_.service.metrics().ObserveHttp(exchange.match.pattern, is_known ? method : "other",
                                         status, seconds);
  spdlog::debug("{} {} {}: {} after {:.1f} ms", exchange.request.request_id,
                is_known ? method : "other", exchange.match.pattern, status, seconds * 1e3);
}

}  // namespace

std::shared_ptr<Connection> Connection::Start(asio::ip::tcp::socket socket,
                                              const ConnectionContext& context,
                                              std::function<void(Connection*)> on_close) {
  const auto executor = socket.get_executor();
  auto connection = std::make_shared<BeastConnection>(std::move(socket), context);
  asio::co_spawn(
      executor, [connection]() { return connection->Serve(); },
      [connection, on_close = std::move(on_close)](std::exception_ptr failure) {
        if (failure) spdlog::error("a connection was dropped because of an exception");
        on_close(connection.get());
      });
  return connection;
}

}  // namespace lynx
