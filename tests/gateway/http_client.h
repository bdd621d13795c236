// SPDX-License-Identifier: Apache-2.0
// A blocking HTTP client on a plain socket, so that tests choose every byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lynx {

struct ClientResponse {
  int status = 0;  // 0: the connection ended
  std::string reason;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

class HttpClient {
 public:
  explicit HttpClient(int port) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    timeval timeout{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // False once the server has closed the connection.
  bool Send(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }
  void SendGet(const std::string& path, const std::string& headers = "") {
    Send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
  }
  void SendPost(const std::string& path, const std::string& body,
                const std::string& headers = "Content-Type: application/json\r\n") {
    Send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
  }
  ClientResponse Get(const std::string& path, const std::string& headers = "") {
    SendGet(path, headers);
    return Read();
  }
  ClientResponse Post(const std::string& path, const std::string& body) {
    SendPost(path, body);
    return Read();
  }

  // A whole response.
  ClientResponse Read(bool has_body = true) {
    ClientResponse response = ReadHead();
    if (response.status == 0 || !has_body) return response;
    if (response.headers.contains("transfer-encoding")) {
      for (std::string chunk = ReadChunk(); !chunk.empty(); chunk = ReadChunk()) {
        response.body += chunk;
      }
    } else if (response.headers.contains("content-length")) {
      Fill(std::stoul(response.headers["content-length"]));
      response.body = Take(std::stoul(response.headers["content-length"]));
    } else if (response.status != 100) {
      while (Receive()) {
      }
      response.body = Take(buffer_.size());
    }
    return response;
  }
  ClientResponse ReadHead() {
    ClientResponse response;
    size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Receive()) return response;
    }
    std::string head = Take(end + 4);
    response.status = std::stoi(head.substr(9, 3));
    response.reason = head.substr(13, head.find("\r\n") - 13);
    for (size_t at = head.find("\r\n") + 2; at < end;) {
      const size_t eol = head.find("\r\n", at), colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), ::tolower);
      response.headers[name] = head.substr(colon + 2, eol - colon - 2);
      at = eol + 2;
    }
    return response;
  }
  // One chunk of a chunked body; empty at its end.
  std::string ReadChunk() {
    size_t eol;
    while ((eol = buffer_.find("\r\n")) == std::string::npos) {
      if (!Receive()) return "";
    }
    const size_t size = std::stoul(Take(eol + 2), nullptr, 16);
    Fill(size + 2);
    std::string data = Take(size + 2);
    data.resize(std::min(size, data.size()));
    return data;
  }
  // True when the server has closed and nothing is left.
  bool AtEnd() { return buffer_.empty() && !Receive(); }

 private:
  bool Receive() {
    char bytes[16384];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  void Fill(size_t size) {
    while (buffer_.size() < size && Receive()) {
    }
  }
  std::string Take(size_t size) {
    std::string taken = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return taken;
  }

  int fd_ = -1;
  std::string buffer_;
};

}  // namespace lynx
