#include "plimsoll/ops/watch/operand_seen.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace plimsoll::ops {
namespace {

constexpr size_t kMostUnread = 4096;  // some megabytes, where nobody ever asks

struct NamedSeen {
  std::string name;
  OperandSeen seen;
};

// In one read.
std::vector<watch::NamedObservation> read_all(const std::vector<NamedSeen>& all) {
  std::vector<at::Tensor> memory;
  for (const auto& [name, seen] : all) {
    memory.push_back(seen.amax.memory());
    if (seen.scale.defined()) memory.push_back(seen.scale.memory());
  }
  const std::vector<float> values = read_on_host(memory);
  std::vector<watch::NamedObservation> result;
  auto next = values.begin();
  for (const auto& [name, seen] : all) {
    watch::Observation read{.format = seen.format, .amax = *next++};
    if (seen.scale.defined()) {
      read.inv_scale = 1.0f / *next++;
    } else if (seen.by_blocks && read.amax > 0) {  // finite, as a factor of zeros, too
      read.inv_scale = std::min(format::max_finite(seen.format) / read.amax, std::numeric_limits<float>::max());
    }
    result.push_back({name, read});
  }
  return result;
}

class UnreadOperands : public watch::Unread {
 public:
  // Returns how many wait.
  size_t add(NamedSeen seen) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(seen));
    return all_.size();
  }
  std::vector<watch::NamedObservation> read() override {
    const std::lock_guard lock(mutex_);
    return read_all(std::exchange(all_, {}));
  }

 private:
  std::mutex mutex_;
  std::vector<NamedSeen> all_;
};

}  // namespace

watch::Observation read_on_host(const OperandSeen& seen) { return read_all({{"", seen}}).front().observation; }

void report_unread(watch::Session& session, std::string name, const OperandSeen& seen) {
  auto& unread =
      static_cast<UnreadOperands&>(session.slots().unread([] { return std::make_unique<UnreadOperands>(); }));
  if (unread.add({std::move(name), seen}) >= kMostUnread) session.slots().read_unread();
}

}  // namespace plimsoll::ops
