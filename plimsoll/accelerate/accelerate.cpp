#include "plimsoll/accelerate/accelerate.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "plimsoll/accelerate/operators.h"

namespace plimsoll {
namespace {

using acceleration::kOperatorNames, acceleration::kOutcomeNames, acceleration::Outcome, acceleration::Variant;

static_assert(std::tuple_size_v<decltype(OperatorCalls::outcomes)> == kOutcomeNames.size());

std::array<std::array<std::atomic<int64_t>, kOutcomeNames.size()>, kOperatorNames.size()> counts;

struct State {
  std::mutex mutex;
  std::unique_ptr<ops::ReplacedKernels> kernels;  // nullptr: off
};

// Never destroyed: the dispatcher may be gone before it.
State& state() {
  static State& state = *new State;
  return state;
}

void replace_kernel(ops::ReplacedKernels& kernels, const Variant& variant) {
  const auto attempt = [variant](ops::CallStack& stack) {
    const Outcome outcome = variant.attempt(stack);
    counts[static_cast<size_t>(variant.op)][static_cast<size_t>(outcome)].fetch_add(1, std::memory_order_relaxed);
    return outcome == Outcome::kReplaced;
  };
  const std::string name = "aten::" + std::string(variant.name);
  if (variant.level == acceleration::Level::kComposed) {
    kernels.replace_composed(name, attempt);
  } else {
    kernels.replace(name, attempt);
  }
}

std::unique_ptr<ops::ReplacedKernels> replace_kernels() {
  auto kernels = std::make_unique<ops::ReplacedKernels>();
  for (const auto& variants :
       {acceleration::product_variants(), acceleration::scaled_product_variants(), acceleration::attention_variants(),
        acceleration::norm_variants(), acceleration::rms_norm_variants(), acceleration::activation_variants(),
        acceleration::softmax_variants(), acceleration::optimizer_variants()}) {
    for (const Variant& variant : variants) replace_kernel(*kernels, variant);
  }
  return kernels;
}

}  // namespace

void accelerate() {
  const std::lock_guard lock(state().mutex);
  if (!state().kernels) state().kernels = replace_kernels();
}

void stop_acceleration() {
  const std::lock_guard lock(state().mutex);
  state().kernels.reset();
}

bool is_accelerated() {
  const std::lock_guard lock(state().mutex);
  return state().kernels != nullptr;
}

Accelerated::Accelerated() : was_on_(is_accelerated()) { accelerate(); }

Accelerated::~Accelerated() {
  if (!was_on_) stop_acceleration();
}

std::vector<OperatorCalls> acceleration_report() {
  std::vector<OperatorCalls> report;
  for (size_t op = 0; op < kOperatorNames.size(); ++op) {
    OperatorCalls calls = {.op = kOperatorNames[op], .outcomes = {}};
    for (size_t i = 0; i < kOutcomeNames.size(); ++i)
      calls.outcomes[i] = {.name = kOutcomeNames[i], .calls = counts[op][i].load(std::memory_order_relaxed)};
    if (std::any_of(calls.outcomes.begin(), calls.outcomes.end(), [](const auto& each) { return each.calls > 0; }))
      report.push_back(calls);
  }
  return report;
}

void reset_acceleration_report() {
  for (auto& of_operator : counts) {
    for (std::atomic<int64_t>& count : of_operator) count.store(0, std::memory_order_relaxed);
  }
}

}  // namespace plimsoll
