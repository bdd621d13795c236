// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_error.h"

#include <utility>

#include "gateway/json_text.h"

namespace lynx {
namespace {

constexpr int kRetryAfterSeconds = 1;
constexpr size_t kMaxMessageBytes = 1000;

// Messages quote what a client sent, which may be megabytes.
std::string Shortened(const std::string& message) {
  if (message.size() <= kMaxMessageBytes) return message;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<uint8_t>(message[end]) & 0xC0) == 0x80) --end;
  return StrCat(message.substr(0, end), "… (", message.size(), " bytes)");
}

Json StringOrNull(const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); }

}  // namespace

ApiError InvalidValue(std::string_view param, std::string message) {
  return {.status = 400,
          .message = std::move(message),
          .param = std::string(param),
          .code = "invalid_value"};
}

ApiError UnsupportedParameter(std::string_view param, std::string message) {
  return {.status = 400,
          .message = std::move(message),
          .param = std::string(param),
          .code = "unsupported_parameter"};
}

ApiError HttpError(int status, std::string message) {
  return {.status = status, .message = std::move(message)};
}

ApiError Unavailable(std::string message) {
  return {.status = 503,
          .message = std::move(message),
          .type = "unavailable_error",
          .retry_after_s = kRetryAfterSeconds};
}

ApiError RequestTimeout(std::chrono::nanoseconds limit) {
  const std::chrono::duration<double> seconds = limit;
  return FromStatus(absl::DeadlineExceededError(
      absl::StrCat("the answer took longer than ", seconds.count(), " s")));
}

ApiError FromStatus(const absl::Status& status) {
  ApiError error{.message = std::string(status.message())};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      error.code = "invalid_value";
      return error;
    case absl::StatusCode::kNotFound:
      error.status = 404;
      error.code = "model_not_found";
      return error;
    case absl::StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "rate_limit_exceeded";
      error.retry_after_s = kRetryAfterSeconds;
      return error;
    case absl::StatusCode::kUnavailable:
      return Unavailable(std::move(error.message));
    case absl::StatusCode::kDeadlineExceeded:
      error.status = 504;
      error.type = "timeout_error";
      return error;
    case absl::StatusCode::kDataLoss:
      error.status = 502;
      error.type = "upstream_error";
      error.code = "kv_transfer_failed";
      return error;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      error.status = 502;
      error.type = "upstream_error";
      return error;
    default:
      error.status = 500;
      error.type = "internal_error";
      return error;
  }
}

ApiError FromEngineError(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return FromStatus(status);
  ApiError error = Unavailable(std::string(status.message()));
  error.code = "queue_timeout";
  return error;
}

std::string ErrorBody(const ApiError& error) {
  return DumpJson({{"error",
                    {{"message", Shortened(error.message)},
                     {"type", error.type},
                     {"param", StringOrNull(error.param)},
                     {"code", StringOrNull(error.code)}}}});
}

}  // namespace lynx
