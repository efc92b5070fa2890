#include "plimsoll/autoscale/session.h"

namespace plimsoll::autoscale {

void Session::count(const std::string& op, int64_t CallCounts::*how) {
  const std::lock_guard lock(mutex_);
  ++(counts_[op].*how);
}

std::map<std::string, CallCounts> Session::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Session::clear_counts() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
}

}  // namespace plimsoll::autoscale
