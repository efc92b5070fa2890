#include "plimsoll/watch/profile.h"

#include <chrono>
#include <utility>

namespace plimsoll::watch {
namespace {

thread_local Profile* profile_in_force = nullptr;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

size_t Profile::totals_of(std::string_view phase, std::string_view name) {
  for (size_t i = 0; i < totals_.size(); ++i) {
    if (totals_[i].name == name && totals_[i].phase == phase) return i;
  }
  totals_.push_back({.phase = std::string(phase), .name = std::string(name)});
  return totals_.size() - 1;
}

void Profile::open(std::string_view name, const Work& work) {
  const std::string phase = open_.empty() ? std::string(name) : totals_[open_.front().totals].phase;
  const size_t totals = totals_of(phase, name);
  open_.push_back({.totals = totals, .begin_ns = now_ns(), .work = work});
}

void Profile::close() {
  const Open span = open_.back();
  open_.pop_back();
  const int64_t end_ns = now_ns(), whole_ns = end_ns - span.begin_ns;
  if (!open_.empty()) open_.back().inner_ns += whole_ns;
  SpanTotals& totals = totals_[span.totals];
  ++totals.calls;
  totals.own_seconds += static_cast<double>(whole_ns - span.inner_ns) * 1e-9;
  totals.work.operations += span.work.operations;
  totals.work.bytes += span.work.bytes;
  events_.push_back({.totals = span.totals, .begin_ns = span.begin_ns, .end_ns = end_ns, .work = span.work});
}

Recording::Recording(Profile& profile)
    : profile_(profile), previous_(std::exchange(profile_in_force, &profile)), begin_ns_(now_ns()) {}

Recording::~Recording() {
  profile_.recorded_ns_ += now_ns() - begin_ns_;
  profile_in_force = previous_;
}

Span::Span(std::string_view name, const Work& work) : profile_(profile_in_force) {
  if (profile_ != nullptr) profile_->open(name, work);
}

Span::~Span() {
  if (profile_ != nullptr) profile_->close();
}

void Span::add(const Work& work) {
  if (profile_ == nullptr) return;
  Work& mine = profile_->open_.back().work;
  mine.operations += work.operations;
  mine.bytes += work.bytes;
}

size_t open_spans() { return profile_in_force == nullptr ? 0 : profile_in_force->open_.size(); }

}  // namespace plimsoll::watch
