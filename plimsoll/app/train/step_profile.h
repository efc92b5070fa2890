// Time of training steps by op, and how near each op comes to what the machine can do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/collective_report.h"
#include "plimsoll/app/process/limits.h"
#include "plimsoll/ops/watch/torch_spans.h"
#include "plimsoll/watch/profile.h"
#include "plimsoll/watch/transfers.h"

namespace plimsoll::app {

// One kind of span, per step.
struct ProfileRow {
  std::string phase;
  std::string op;
  double calls = 0;
  double seconds = 0;
  double gigabytes = 0;  // read and written
  // GFLOP/s of products, GB/s of what moves memory; nothing where the work is not known.
  std::optional<double> rate = {};
  const char* unit = "";
  double share_of_limit = 0;  // of all threads' multiply-adds, or of a copy in memory (caches are faster)
};

struct ProfileReport {
  int64_t steps = 0;           // profiled
  double step_seconds = 0;     // mean
  double accounted_share = 0;  // of the step, by named ops
  // The longest phase first, in it the longest op; then its short ones in one row, and what no op accounts for.
  std::vector<ProfileRow> rows;
  CollectiveReport collectives = {};  // of this rank
};

class StepProfile {
 public:
  // A profile of up to 20 steps, after 3 that warm up (fewer in a short run).
  explicit StepProfile(int64_t steps_to_come);

  // Runs a step, under recording if it is one of those.
  template <class Step>
  auto run(Step step) {
    if (!is_next_profiled()) return step();
    const watch::Recording recording(profile_);
    const watch::TransferRecording transfer_recording(transfers_);
    const ops::TorchSpans torch_spans;
    return step();
  }

  const watch::Profile& profile() const { return profile_; }
  const watch::Transfers& transfers() const { return transfers_; }
  int64_t steps() const { return profiled_; }

 private:
  bool is_next_profiled();

  int64_t warm_up_;
  int64_t seen_ = 0, profiled_ = 0;
  watch::Profile profile_;
  watch::Transfers transfers_;
};

ProfileReport report_of(const StepProfile& profile, const AllLimits& limits);

// Chrome's trace format (chrome://tracing, Perfetto): every span with its work, and collectives beside them. Throws
// io::Error.
void write_trace(const std::filesystem::path& path, const StepProfile& profile);

}  // namespace plimsoll::app
