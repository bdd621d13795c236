// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "lynx/transport.h"

namespace lynx {

// A UCX transport, which this machine must be able to make.
inline std::unique_ptr<Transport> MakeUcx(const UcxOptions& options = {}) {
  auto transport = MakeUcxTransport(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

}  // namespace lynx
