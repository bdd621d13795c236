// SPDX-License-Identifier: Apache-2.0
#include "text/python_thread.h"

#include <future>

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(PythonThread, AWaitThatIsTooLongIsNotTheTasksFault) {
  const auto python = PythonThread::Get();
  ASSERT_TRUE(python.ok()) << python.status();
  std::promise<void> has_begun, may_end;
  auto first = std::async(std::launch::async, [&] {
    return (*python)->Run([&] {
      has_begun.set_value();
      may_end.get_future().wait();
      return absl::OkStatus();
    });
  });
  has_begun.get_future().wait();
  const auto nothing = [] { return absl::OkStatus(); };
  EXPECT_EQ((*python)->Run(nothing, std::chrono::milliseconds(1)).code(),
            absl::StatusCode::kUnavailable);
  may_end.set_value();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE((*python)->Run(nothing).ok());
}

}  // namespace
}  // namespace lynx
