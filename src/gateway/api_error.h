// SPDX-License-Identifier: Apache-2.0
// Errors as OpenAI's clients read them: an HTTP status and {"error": {message, type, param, code}}.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lynx/status.h"

namespace lynx {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;      // empty: null
  std::string code;       // empty: null
  int retry_after_s = 0;  // > 0: sent as Retry-After
  bool close = false;     // the connection cannot be used any more
};

// The result of a step that may refuse: empty means it went well.
using MaybeError = std::optional<ApiError>;

ApiError InvalidValue(std::string_view param, std::string message);
ApiError UnsupportedParameter(std::string_view param, std::string message);
ApiError HttpError(int status, std::string message);      // 404 path, 405, 413, 415, 431 …
ApiError Unavailable(std::string message);                // 503, retry later
ApiError RequestTimeout(std::chrono::nanoseconds limit);  // 504: the whole answer took longer
// What an engine or a daemon reported.
ApiError FromStatus(const absl::Status& status);
// The same of EngineOutput::error, where kDeadlineExceeded means a wait in a queue: 503.
ApiError FromEngineError(const absl::Status& status);

// A long message is cut.
std::string ErrorBody(const ApiError& error);

#define LYNX_RETURN_IF_REFUSED(expr)                   \
  do {                                                 \
    if (::lynx::MaybeError e_ = (expr); e_) return e_; \
  } while (false)

}  // namespace lynx
