// SPDX-License-Identifier: Apache-2.0
#include "app/chat.h"

#include <gtest/gtest.h>

namespace lynx {
namespace {

TEST(ChatTest, AnErrorNamesTheFlagAndShowsAUrl) {
  for (const char* url : {"localhost", "https://localhost:8000", "http://localhost:99999", ""}) {
    const absl::Status status = RunChat({.url = url, .prompt = "hi"});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat("--url: '", url, "' is not a URL such as http://127.0.0.1:8000"));
  }
}

}  // namespace
}  // namespace lynx
