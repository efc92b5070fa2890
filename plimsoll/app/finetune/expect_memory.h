// Memory that a fine-tuning run must find before it begins, and options of a smaller one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "plimsoll/app/finetune/run_estimate.h"

namespace plimsoll::app {

// Throws UsageError, with options that would fit, where the estimate is above what the system and the process's control
// groups leave.
void expect_memory(const FinetuneOptions& options, const MemoryEstimate& estimate, int64_t ranks);

// Words to type for the first smaller run that is accepted and fits, the nearest to this one first; nothing: none does.
std::optional<std::string> smaller_run(const FinetuneOptions& options, int64_t ranks,
                                       const std::function<bool(const FinetuneOptions&)>& fits);

}  // namespace plimsoll::app
