#include "plimsoll/runtime/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "plimsoll/runtime/threads.h"

namespace plimsoll::runtime {
namespace {

using std::filesystem::path;

// cpu.max: "50000 100000", microseconds in a period, or "max 100000".
std::optional<double> quota_of_v2(const path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> quota_of_v1(const path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// The least along the path of a group. A container may see the names of groups that are mounted elsewhere for it: what
// is not there is passed over, and the mount itself is always looked at.
template <class QuotaOf>
std::optional<double> least_of(const path& mount, const std::string& name, QuotaOf quota_of) {
  std::optional<double> least;
  const auto look = [&](const path& group) {
    if (const std::optional<double> quota = quota_of(group); quota && (!least || *quota < *least)) least = quota;
  };
  path group = mount;
  look(group);
  for (const path& part : path(name).relative_path()) look(group /= part);
  return least;
}

bool controls_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

std::optional<double> cpu_quota(const path& groups, const path& mount) {
  std::optional<double> least;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // hierarchy:controllers:name
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), name = line.substr(second + 1);
    std::optional<double> quota;
    if (controllers.empty()) quota = least_of(mount, name, quota_of_v2);
    if (controls_cpu(controllers)) quota = least_of(mount / "cpu", name, quota_of_v1);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

void keep_to_cpu_quota() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  if (const std::optional<double> quota = cpu_quota()) {
    set_threads(static_cast<int>(std::min<double>(threads(), std::ceil(*quota))));
  }
}

}  // namespace plimsoll::runtime
