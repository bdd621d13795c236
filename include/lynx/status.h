// SPDX-License-Identifier: Apache-2.0
// Errors. absl::Status for whatever the outside world can cause; CHECK (absl/log is not in this
// Abseil) as LYNX_CHECK for bugs, which abort. Codes mean what docs/protocol.md says they mean.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define LYNX_CONCAT_(a, b) a##b
#define LYNX_CONCAT(a, b) LYNX_CONCAT_(a, b)

#define LYNX_RETURN_IF_ERROR(expr)                     \
  do {                                                 \
    if (absl::Status s_ = (expr); !s_.ok()) return s_; \
  } while (false)

#define LYNX_ASSIGN_OR_RETURN(lhs, expr) \
  LYNX_ASSIGN_OR_RETURN_(LYNX_CONCAT(status_or_, __LINE__), lhs, expr)
#define LYNX_ASSIGN_OR_RETURN_(tmp, lhs, expr)   \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

#define LYNX_CHECK(cond)                                                            \
  do {                                                                              \
    if (!(cond)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)
