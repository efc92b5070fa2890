#include "plimsoll/cli/profile_table.h"

#include <fmt/format.h>

#include "plimsoll/cli/output.h"
#include "plimsoll/cli/table.h"

namespace plimsoll::cli {
namespace {

std::string or_dash(bool known, const std::string& text) { return known ? text : "-"; }

// Nothing of a process alone.
std::string collectives_text(const app::CollectiveReport& report) {
  if (report.rows.empty()) return "";
  Table table({"collective", "calls", "MB", "ms", "waited ms"});
  for (const app::CollectiveRow& row : report.rows) {
    table.add({row.name, fmt::format("{:.4g}", row.calls), fmt::format("{:.2f}", 1e3 * row.gigabytes),
               fmt::format("{:.2f}", 1e3 * row.seconds), fmt::format("{:.2f}", 1e3 * row.waited_seconds)});
  }
  return fmt::format(
      "collectives of rank 0: under way for {:.1f} ms of a step; training waited {:.1f} ms, {:.0f}% was hidden\n{}",
      1e3 * report.seconds, 1e3 * report.waited_seconds, 100 * report.hidden_share(), table.text());
}

}  // namespace

std::string profile_text(const app::ProfileReport& report) {
  Table table({"phase", "op", "calls", "ms", "of step", "rate", "", "of limit", "MB"});
  for (const app::ProfileRow& row : report.rows) {
    const bool known = row.rate.has_value();
    table.add({row.phase, row.op, or_dash(row.calls > 0, fmt::format("{:.4g}", row.calls)),
               fmt::format("{:.2f}", 1e3 * row.seconds),
               fmt::format("{:.1f}%", 100 * row.seconds / report.step_seconds),
               or_dash(known, fmt::format("{:.1f}", row.rate.value_or(0))), row.unit,
               or_dash(known, fmt::format("{:.0f}%", 100 * row.share_of_limit)),
               or_dash(known, fmt::format("{:.1f}", 1e3 * row.gigabytes))});
  }
  return fmt::format("profile of {}, {:.1f} ms each; named ops account for {:.1f}%\n{}{}",
                     counted(report.steps, "step"), 1e3 * report.step_seconds, 100 * report.accounted_share,
                     table.text(), collectives_text(report.collectives));
}

}  // namespace plimsoll::cli
