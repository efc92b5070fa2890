#include "plimsoll/app/finetune/expect_memory.h"

#include <cmath>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/finetune/adapters.h"
#include "plimsoll/app/process/limits.h"
#include "plimsoll/app/process/process_memory.h"

namespace plimsoll::app {
namespace {

struct SmallerRun {
  std::string words;
  FinetuneOptions options;
};

bool is_accepted(const FinetuneOptions& options) {
  try {
    check_adapters(options);
    check_masters(options.run);
    // A certificate, which is read later, may take the loss scale from fp16.
    if (options.run.recipe.value.high_precision_format() != format::Format::kFp16) check_loss_scale(options.run);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// Options of a whole model's training that adapters refuse.
std::string words_of_full(const FinetuneOptions& options) {
  if (options.lora) return "";
  std::string words = " in place of --full";
  if (options.run.masters != optim::MasterKind::kFp32) {
    words += io::compose(" --masters {}", recipe::name_of(optim::kMasters, options.run.masters));
  }
  return words + (options.run.release_gradients ? " --release-gradients" : "");
}

FinetuneOptions with_adapters(FinetuneOptions options, models::WeightDtype base) {
  options.run.masters = optim::MasterKind::kFp32;
  options.run.release_gradients = false;
  if (!options.lora || options.lora->adapters.rank > usual_lora().adapters.rank) options.lora = usual_lora();
  options.base = base;
  return options;
}

FinetuneOptions with_narrow_states(FinetuneOptions options) {
  options.run.masters = optim::MasterKind::kNone;
  options.run.optimizer_state = optim::StateKind::k8Bit;
  options.run.release_gradients = true;
  return options;
}

// The nearest to the options first.
std::vector<SmallerRun> smaller_runs(const FinetuneOptions& options, int64_t ranks) {
  std::vector<SmallerRun> runs;
  for (int64_t rows = options.run.batch / ranks / 2; rows >= 1; rows /= 2) {
    runs.push_back({io::compose("--batch {}", rows * ranks), options});
    runs.back().options.run.batch = rows * ranks;
  }
  FinetuneOptions least = options;
  least.run.batch = ranks;
  least.run.checkpoint_activations = true;
  const std::string words = io::compose("--batch {} --checkpoint-activations", ranks);
  runs.push_back({words, least});
  if (!options.lora) {
    const bool clips = std::isfinite(options.run.clip) && options.run.clip != TrainOptions().clip;
    runs.push_back(
        {words + " --masters none --optimizer-state 8bit --release-gradients" + (clips ? " without --clip" : ""),
         with_narrow_states(least)});
  }
  const std::string instead = words_of_full(options);
  runs.push_back({"--lora --base fp8 " + words + instead, with_adapters(least, models::WeightDtype::kFp8)});
  runs.push_back({"--lora " + words + instead, with_adapters(least, models::WeightDtype::kAsStored)});
  return runs;
}

}  // namespace

std::optional<std::string> smaller_run(const FinetuneOptions& options, int64_t ranks,
                                       const std::function<bool(const FinetuneOptions&)>& fits) {
  for (const SmallerRun& run : smaller_runs(options, ranks)) {
    if (is_accepted(run.options) && fits(run.options)) return run.words;
  }
  return std::nullopt;
}

void expect_memory(const FinetuneOptions& options, const MemoryEstimate& estimate, int64_t ranks) {
  const auto available = available_memory_bytes();
  const double held = static_cast<double>(rss_bytes());
  const auto fits = [&](double needed) { return needed - held <= static_cast<double>(*available); };
  if (!available || fits(estimate.total())) return;
  const auto run_fits = [&](const FinetuneOptions& other) {
    return fits(estimate_memory(other, other.run.batch / ranks, ranks).total());
  };
  FinetuneOptions first = options;
  std::string words;
  if (!fits(estimate.replies())) {
    first.samples = 0;
    words = "--samples 0";
  }
  std::string advice = "no fine-tuning of this model fits";
  if (first.samples != options.samples && run_fits(first)) {
    advice = words + " would fit";
  } else if (const auto smaller = smaller_run(first, ranks, run_fits)) {
    advice = words + (words.empty() ? "" : " ") + *smaller + " would fit";
  }
  refuse("finetune: expected memory of {:.1f} GB, got {:.1f} GB that are free; {}", estimate.total() / 1e9,
         (held + static_cast<double>(*available)) / 1e9, advice);
}

}  // namespace plimsoll::app
