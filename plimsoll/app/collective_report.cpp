#include "plimsoll/app/collective_report.h"

#include <algorithm>
#include <functional>

namespace plimsoll::app {
namespace {

using watch::TransferEvent;

constexpr int kFirstLine = 2;  // behind that of the training thread

watch::Transfers as_they_began(watch::Transfers transfers) {
  std::ranges::stable_sort(transfers, {}, &TransferEvent::begin_ns);
  return transfers;
}

double seconds_of(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// Seconds in which at least one transfer was under way.
double seconds_under_way(const watch::Transfers& transfers) {
  int64_t sum = 0, covered_to = 0;
  for (const TransferEvent& event : as_they_began(transfers)) {
    const int64_t begin = std::max(event.begin_ns, covered_to);
    sum += std::max<int64_t>(event.end_ns - begin, 0);
    covered_to = std::max(covered_to, event.end_ns);
  }
  return seconds_of(sum);
}

}  // namespace

CollectiveReport collectives_of(const watch::Transfers& transfers, int64_t steps) {
  CollectiveReport report;
  const double per_step = 1 / static_cast<double>(steps);
  for (const TransferEvent& event : transfers) {
    auto row = std::ranges::find(report.rows, event.name, &CollectiveRow::name);
    if (row == report.rows.end()) row = report.rows.insert(row, {.name = event.name});
    row->calls += per_step;
    row->gigabytes += per_step * event.bytes / 1e9;
    row->seconds += per_step * seconds_of(event.end_ns - event.begin_ns);
    row->waited_seconds += per_step * seconds_of(event.waited_ns);
    report.waited_seconds += per_step * seconds_of(event.waited_ns);
  }
  std::ranges::sort(report.rows, std::greater(), &CollectiveRow::seconds);
  report.seconds = per_step * seconds_under_way(transfers);
  return report;
}

void add_collectives(nlohmann::json& events, const watch::Transfers& transfers, int64_t start_ns) {
  std::vector<int64_t> free_at;  // each line
  for (const TransferEvent& event : as_they_began(transfers)) {
    auto line = std::ranges::find_if(free_at, [&](int64_t time) { return time <= event.begin_ns; });
    if (line == free_at.end()) line = free_at.insert(line, 0);
    *line = event.end_ns;
    events.push_back({{"name", event.name},
                      {"cat", "collectives"},
                      {"ph", "X"},
                      {"ts", static_cast<double>(event.begin_ns - start_ns) * 1e-3},
                      {"dur", static_cast<double>(event.end_ns - event.begin_ns) * 1e-3},
                      {"pid", 1},
                      {"tid", kFirstLine + (line - free_at.begin())},
                      {"args", {{"bytes", event.bytes}, {"waited_ms", static_cast<double>(event.waited_ns) * 1e-6}}}});
  }
  for (size_t line = 0; line < free_at.size(); ++line) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", kFirstLine + static_cast<int>(line)},
                      {"args", {{"name", "collectives"}}}});
  }
}

}  // namespace plimsoll::app
