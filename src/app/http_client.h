// SPDX-License-Identifier: Apache-2.0
// A small HTTP client: one request a call, plain HTTP.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct HttpRequest {
  std::string host;
  int port = 80;
  std::string method = "GET";
  std::string target = "/";
  std::string body;                            // JSON
  std::string api_key;                         // "" = none
  std::string request_id;                      // "" = none
  bool keep_alive = false;                     // leave the connection open for the next request
  std::chrono::milliseconds timeout{600'000};  // without any byte
};

struct HttpResponse {
  int status = 0;
  std::string body;  // empty when on_data took it
};

using HttpDataSink = std::function<void(std::string_view)>;

// on_data, if set, gets the pieces of a 200's body as they arrive.
absl::StatusOr<HttpResponse> SendHttp(const HttpRequest& request,
                                      const HttpDataSink& on_data = nullptr);

// "http://host[:port][/v1]" or "host:port" -> host and port.
absl::Status ParseUrl(const std::string& url, std::string* host, int* port);

// Whether a gateway answers 200 to /ready. Between two questions lies at least `interval`; in
// between the last answer counts.
class ReadinessProbe {
 public:
  bool Check(const std::string& host, int port, std::chrono::milliseconds interval);
  void Reset() { *this = ReadinessProbe(); }  // the gateway has gone

 private:
  std::chrono::steady_clock::time_point last_;
  bool ready_ = false;
};

}  // namespace lynx
