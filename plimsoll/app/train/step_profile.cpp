#include "plimsoll/app/train/step_profile.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kWarmUpSteps = 3, kMostSteps = 20;
// Share of the step below which ops are joined into one row for each phase.
constexpr double kShortShare = 0.002;

using watch::SpanTotals;

bool is_phase(const SpanTotals& totals) { return totals.name == totals.phase; }

double product_limit(const AllLimits& limits) {
  const runtime::Isa isa = runtime::matmul_isa();
  if (isa >= runtime::Isa::kAmx && limits.tile_gflops) return limits.tile_gflops->all_threads;
  if (isa >= runtime::Isa::kAvx512Bf16 && limits.bf16_gflops) return limits.bf16_gflops->all_threads;
  return limits.fp32_gflops.all_threads;
}

class Reporter {
 public:
  Reporter(const watch::Profile& profile, int64_t steps, const AllLimits& limits)
      : profile_(profile),
        steps_(static_cast<double>(steps)),
        product_limit_(product_limit(limits)),
        memory_limit_(limits.memory.copy.all_threads) {
    report_.steps = steps;
    report_.step_seconds = profile.seconds() / steps_;
  }

  ProfileReport operator()() {
    std::vector<std::pair<double, const SpanTotals*>> phases;
    double in_phases = 0;
    for (const SpanTotals& totals : profile_.totals()) {
      in_phases += totals.own_seconds / steps_;
      if (is_phase(totals)) phases.emplace_back(seconds_of_phase(totals.phase), &totals);
    }
    std::ranges::sort(phases, std::greater());
    for (const auto& [seconds, phase] : phases) add_phase(*phase);
    report_.rows.push_back({.phase = "step", .op = "(rest)", .seconds = report_.step_seconds - in_phases});
    return report_;
  }

 private:
  double seconds_of_phase(const std::string& phase) const {
    double seconds = 0;
    for (const SpanTotals& totals : profile_.totals()) seconds += totals.phase == phase ? totals.own_seconds : 0;
    return seconds;
  }

  void add_phase(const SpanTotals& phase) {
    std::vector<ProfileRow> rows;
    ProfileRow others{.phase = phase.phase, .op = "(short ones)"};
    for (const SpanTotals& totals : profile_.totals()) {
      if (totals.phase != phase.phase || is_phase(totals)) continue;
      ProfileRow row = row_of(totals);
      report_.accounted_share += row.seconds / report_.step_seconds;
      if (row.seconds >= kShortShare * report_.step_seconds) {
        rows.push_back(std::move(row));
      } else {
        others.calls += row.calls;
        others.seconds += row.seconds;
      }
    }
    std::ranges::sort(rows, std::greater(), &ProfileRow::seconds);
    if (others.calls > 0) rows.push_back(std::move(others));
    rows.push_back({.phase = phase.phase, .op = "(rest)", .seconds = phase.own_seconds / steps_});
    std::ranges::move(rows, std::back_inserter(report_.rows));
  }

  ProfileRow row_of(const SpanTotals& totals) const {
    ProfileRow row{.phase = totals.phase,
                   .op = totals.name,
                   .calls = static_cast<double>(totals.calls) / steps_,
                   .seconds = totals.own_seconds / steps_,
                   .gigabytes = totals.work.bytes / steps_ / 1e9};
    if (totals.work.operations > 0) {
      row.unit = "GFLOP/s";
      row.rate = totals.work.operations / totals.own_seconds / 1e9;
      row.share_of_limit = *row.rate / product_limit_;
    } else if (totals.work.bytes > 0) {
      row.unit = "GB/s";
      row.rate = totals.work.bytes / totals.own_seconds / 1e9;
      row.share_of_limit = *row.rate / memory_limit_;
    }
    return row;
  }

  const watch::Profile& profile_;
  double steps_;
  double product_limit_, memory_limit_;
  ProfileReport report_;
};

}  // namespace

ProfileReport report_of(const StepProfile& profile, const AllLimits& limits) {
  ProfileReport report = Reporter(profile.profile(), profile.steps(), limits)();
  report.collectives = collectives_of(profile.transfers(), profile.steps());
  return report;
}

void write_trace(const std::filesystem::path& path, const StepProfile& steps) {
  const watch::Profile& profile = steps.profile();
  nlohmann::json events = nlohmann::json::array();
  int64_t start_ns = profile.events().empty() ? 0 : profile.events().front().begin_ns;
  for (const watch::SpanEvent& event : profile.events()) start_ns = std::min(start_ns, event.begin_ns);
  for (const watch::SpanEvent& event : profile.events()) {
    const SpanTotals& totals = profile.totals()[event.totals];
    events.push_back({{"name", totals.name},
                      {"cat", totals.phase},
                      {"ph", "X"},  // a complete event: begin and duration, in microseconds
                      {"ts", static_cast<double>(event.begin_ns - start_ns) * 1e-3},
                      {"dur", static_cast<double>(event.end_ns - event.begin_ns) * 1e-3},
                      {"pid", 1},
                      {"tid", 1},
                      {"args", {{"operations", event.work.operations}, {"bytes", event.work.bytes}}}});
  }
  add_collectives(events, steps.transfers(), start_ns);
  io::write_file(path, nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n");
}

StepProfile::StepProfile(int64_t steps_to_come) : warm_up_(std::clamp(steps_to_come - 1, int64_t{0}, kWarmUpSteps)) {}

bool StepProfile::is_next_profiled() {
  if (seen_++ < warm_up_ || profiled_ == kMostSteps) return false;
  ++profiled_;
  return true;
}

}  // namespace plimsoll::app
