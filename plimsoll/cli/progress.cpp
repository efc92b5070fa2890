#include "plimsoll/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "plimsoll/cli/output.h"

namespace plimsoll::cli {
namespace {

constexpr const char* kRewrite = "\r\x1b[K";  // back to the start of the line, which is cleared

// A tensor scaled to the edge of its format has a headroom of 0, give or take a rounding.
double without_minus_zero(double bits) { return std::abs(bits) < 0.05 ? 0.0 : bits; }

}  // namespace

std::string clock_text(double seconds) {
  constexpr double kLongest = 1e15;  // fits into 64 bits
  const auto whole = static_cast<int64_t>(std::min(seconds + 0.5, kLongest));
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::string label, int64_t log_every)
    : label_(std::move(label)), log_every_(log_every), terminal_(isatty(STDOUT_FILENO) == 1) {}

void Progress::step(const app::StepRecord& record) {
  ++steps_seen_;
  const bool lasting = record.val_loss || record.step == record.steps;
  if (terminal_) {
    fmt::print("{}{}{}", kRewrite, describe(record), lasting ? "\n" : "");
  } else if (lasting || record.step % log_every_ == 0) {
    fmt::print("{}\n", describe(record));
  }
  std::fflush(stdout);
}

void Progress::row(const std::string& line) const {
  fmt::print("{}{}\n", terminal_ ? kRewrite : "", line);
  std::fflush(stdout);
}

void Progress::note(const std::string& line) const {
  fmt::print(stderr, "{}plimsoll: {}\n", terminal_ ? kRewrite : "", line);
}

double Progress::seconds_left(const app::StepRecord& record) const {
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return passed / static_cast<double>(steps_seen_) * static_cast<double>(record.steps - record.step);
}

std::string Progress::describe(const app::StepRecord& record) const {
  std::string line =
      fmt::format("{}  step {}/{}  loss {}", label_, record.step, record.steps, loss_text(record.result.loss));
  if (record.val_loss) line += fmt::format("  val {}", loss_text(*record.val_loss));
  line += fmt::format("  {:.0f} tokens/s  ETA {}", record.tokens_per_s, clock_text(seconds_left(record)));
  if (record.result.headroom_bits)
    line += fmt::format("  headroom {:.1f} bits", without_minus_zero(*record.result.headroom_bits));
  return line;
}

}  // namespace plimsoll::cli
