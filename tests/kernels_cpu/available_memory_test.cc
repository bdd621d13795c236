// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/available_memory.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace lynx::cpu {
namespace {

class AvailableMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  const std::string root_ = testing::TempDir() + "available_memory_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(AvailableMemoryTest, IsWhatTheTightestGroupLeaves) {
  Write("/proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 1024000);
  Write("/proc/self/cgroup", "1:name=systemd:/x\n0::/pod/box\n");
  EXPECT_EQ(AvailableMemory(root_), 1024000);
  Write("/sys/fs/cgroup/pod/box/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/box/memory.current", "300\n");
  EXPECT_EQ(AvailableMemory(root_), 1024000);
  Write("/sys/fs/cgroup/pod/memory.max", "5000\n");
  Write("/sys/fs/cgroup/pod/memory.current", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), 4000);
  Write("/sys/fs/cgroup/pod/box/memory.max", "800\n");
  EXPECT_EQ(AvailableMemory(root_), 500);
  Write("/sys/fs/cgroup/pod/box/memory.current", "900\n");
  EXPECT_EQ(AvailableMemory(root_), 0);
}

TEST_F(AvailableMemoryTest, ReadsTheMountOfANamespace) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "7000\n");
  Write("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(AvailableMemory(root_), 5000);
}

TEST_F(AvailableMemoryTest, IsZeroWhereNobodyKnows) { EXPECT_EQ(AvailableMemory(root_), 0); }

}  // namespace
}  // namespace lynx::cpu
