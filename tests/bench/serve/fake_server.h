// SPDX-License-Identifier: Apache-2.0
// An OpenAI server whose every byte the test chooses. A thread for each connection.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lynx {

struct FakeReply {
  std::vector<std::string> pieces;  // raw bytes of the response, one send each
  bool close = false;               // the connection, after them
};

inline FakeReply PlainReply(const std::string& status, const std::string& body) {
  return {{"HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body}};
}

// Each piece is a chunk of its own.
inline FakeReply StreamReply(const std::vector<std::string>& pieces, bool is_complete = true) {
  FakeReply reply{{"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                   "Transfer-Encoding: chunked\r\n\r\n"},
                  !is_complete};
  char size[32];
  for (const std::string& piece : pieces) {
    std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    reply.pieces.push_back(size + piece + "\r\n");
  }
  if (is_complete) reply.pieces.push_back("0\r\n\r\n");
  return reply;
}

class FakeOpenAiServer {
 public:
  // Called on the connection's thread with the request's path and its body (null for none).
  using Answer = std::function<FakeReply(const std::string& path, const nlohmann::json& body)>;

  explicit FakeOpenAiServer(Answer answer) : answer_(std::move(answer)) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 128), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~FakeOpenAiServer() {
    shutdown(fd_, SHUT_RDWR);
    acceptor_.join();
    close(fd_);
    for (const int fd : connections_) shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : connections_) close(fd);
  }
  FakeOpenAiServer(const FakeOpenAiServer&) = delete;

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int num_connections() const { return num_connections_; }

 private:
  void Accept() {
    for (int fd; (fd = accept(fd_, nullptr, nullptr)) >= 0;) {
      ++num_connections_;
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      connections_.push_back(fd);
      threads_.emplace_back([this, fd] { Serve(fd); });
    }
  }

  void Serve(int fd) {
    std::string bytes;
    while (true) {
      size_t head_end, length = 0;
      while ((head_end = bytes.find("\r\n\r\n")) == std::string::npos) {
        if (!Receive(fd, &bytes)) return;
      }
      head_end += 4;
      if (const size_t at = bytes.find("Content-Length: "); at < head_end) {
        length = std::strtoul(bytes.c_str() + at + 16, nullptr, 10);
      }
      while (bytes.size() < head_end + length) {
        if (!Receive(fd, &bytes)) return;
      }
      const size_t path = bytes.find(' ') + 1;
      const FakeReply reply =
          answer_(bytes.substr(path, bytes.find(' ', path) - path),
                  nlohmann::json::parse(bytes.substr(head_end, length), nullptr, false));
      bytes.erase(0, head_end + length);
      for (const std::string& piece : reply.pieces) {
        if (send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) return;
      }
      if (reply.close) {
        shutdown(fd, SHUT_RDWR);
        return;
      }
    }
  }

  static bool Receive(int fd, std::string* bytes) {
    char buffer[4096];
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n > 0) bytes->append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  Answer answer_;
  int fd_ = -1, port_ = 0;
  std::atomic<int> num_connections_ = 0;
  std::vector<int> connections_;  // the acceptor's, until it has ended
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace lynx
