// Processor time that the control groups of this process grant, as containers limit it (docker --cpus, Kubernetes).
#pragma once

#include <filesystem>
#include <optional>

namespace plimsoll::runtime {

// In processors: the tightest limit of the process's group and of those it is in; nullopt without a limit. Versions 1
// and 2 of control groups. `groups` names the groups of a process, `mount` is where they are mounted.
std::optional<double> cpu_quota(const std::filesystem::path& groups = "/proc/self/cgroup",
                                const std::filesystem::path& mount = "/sys/fs/cgroup");

// Takes no more threads than the quota grants, rounded up, unless OMP_NUM_THREADS says how many: threads that wait for
// each other lose whole scheduling periods when the group is stopped in between.
void keep_to_cpu_quota();

}  // namespace plimsoll::runtime
