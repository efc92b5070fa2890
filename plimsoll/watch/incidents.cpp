#include "plimsoll/watch/incidents.h"

#include <algorithm>
#include <utility>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::watch {
namespace {

constexpr size_t kWindow = 6;      // steps before an incident
constexpr size_t kConsumers = 16;  // that are named

}  // namespace

std::string_view name(Harm harm) {
  switch (harm) {
    case Harm::kAbsorbed:
      return "absorbed";
    case Harm::kPropagating:
      return "propagating";
    case Harm::kNanProducing:
      return "NaN-producing";
  }
  runtime::unexpected("watch: harm", static_cast<int>(harm));
}

void Incidents::step(std::string_view path, float amax, double headroom_bits) {
  const std::lock_guard lock(mutex_);
  if (steps_.size() == kWindow) steps_.erase(steps_.begin());
  steps_.push_back({std::string(path), amax, headroom_bits});
  ++steps_taken_;
}

int64_t Incidents::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_taken_;
}

std::string Incidents::last_path() const {
  const std::lock_guard lock(mutex_);
  return steps_.empty() ? std::string() : steps_.back().path;
}

int64_t Incidents::next_call(std::string_view path) {
  const std::lock_guard lock(mutex_);
  return calls_[std::string(path)]++;
}

bool Incidents::knows(std::string_view path) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(incidents_.begin(), incidents_.end(),
                     [&](const Incident& incident) { return incident.path == path; });
}

void Incidents::add(Incident incident) {
  const std::lock_guard lock(mutex_);
  incident.before.assign(steps_.rbegin(), steps_.rend());
  incidents_.push_back(std::move(incident));
}

bool Incidents::none() const {
  const std::lock_guard lock(mutex_);
  return incidents_.empty();
}

void Incidents::around(WindowStep step) {
  const std::lock_guard lock(mutex_);
  if (!incidents_.empty()) incidents_.front().window.push_back(std::move(step));
}

void Incidents::follow(std::string_view path, Harm harm) {
  const std::lock_guard lock(mutex_);
  if (incidents_.empty()) return;
  Incident& incident = incidents_.back();
  if (incident.consumers.size() < kConsumers) incident.consumers.push_back({std::string(path), harm});
  if (incident.harm != Harm::kNanProducing) incident.harm = harm;
}

std::vector<Incident> Incidents::all() const {
  const std::lock_guard lock(mutex_);
  return incidents_;
}

void Incidents::clear() {
  const std::lock_guard lock(mutex_);
  incidents_.clear();
  steps_.clear();
  calls_.clear();
}

}  // namespace plimsoll::watch
