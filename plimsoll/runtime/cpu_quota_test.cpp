#include "plimsoll/runtime/cpu_quota.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace plimsoll::runtime {
namespace {

namespace fs = std::filesystem;

class CpuQuota : public testing::Test {
 protected:
  CpuQuota() { fs::create_directories(mount_); }
  ~CpuQuota() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::optional<double> quota(const std::string& groups) const {
    write("groups", groups);
    return cpu_quota(root_ / "groups", mount_);
  }

  const fs::path root_ = fs::temp_directory_path() / ("plimsoll_quota_" + std::to_string(getpid()));
  const fs::path mount_ = root_ / "mount";
};

TEST_F(CpuQuota, NoneWithoutLimit) {
  EXPECT_EQ(quota("0::/\n"), std::nullopt);
  write("mount/cpu.max", "max 100000\n");
  write("mount/cpu/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("1:cpu:/\n0::/\n"), std::nullopt);
  EXPECT_EQ(quota("nothing of the kind\n"), std::nullopt);
  EXPECT_EQ(cpu_quota(root_ / "absent", mount_), std::nullopt);
}

TEST_F(CpuQuota, TheTightestOfTheGroupsAroundIt) {
  write("mount/a/cpu.max", "150000 100000\n");
  write("mount/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 1.5);
  EXPECT_EQ(quota("0::/a/b/absent\n"), 1.5);
  EXPECT_EQ(quota("0::/other\n"), std::nullopt);
}

TEST_F(CpuQuota, InAContainerTheMountIsItsGroup) {
  write("mount/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota("0::/system.slice/of-the-host\n"), 0.5);
}

TEST_F(CpuQuota, OfVersionOne) {
  write("mount/cpu/jobs/cpu.cfs_quota_us", "250000\n");
  write("mount/cpu/jobs/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("3:cpuset:/jobs\n"), std::nullopt);
  EXPECT_EQ(quota("4:cpu,cpuacct:/jobs\n"), 2.5);
}

}  // namespace
}  // namespace plimsoll::runtime
