#include "plimsoll/autoscale/session.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <utility>

namespace plimsoll::autoscale {
namespace {

constexpr size_t kLongestStep = 1 << 20;  // calls that Method::kDelayed tells apart

void check(const Settings& settings) {
  const at::ScalarType data = settings.storage;
  TORCH_CHECK_VALUE(data == at::kHalf || data == at::kBFloat16 || data == at::kFloat,
                    "autoscale: expected data in Half, BFloat16 or Float, got ", data);
  TORCH_CHECK_VALUE(
      (settings.product_values == ProductFormat::kData) == (settings.product_gradients == ProductFormat::kData),
      "autoscale: expected a format of products for both values and gradients, got ",
      recipe::name_of(kProductFormats, settings.product_values), " and ",
      recipe::name_of(kProductFormats, settings.product_gradients));
  TORCH_CHECK_VALUE(std::abs(settings.policy.exponent) < kLargestExponent, "autoscale: expected an exponent below ",
                    kLargestExponent, ", got ", settings.policy.exponent);
}

}  // namespace

Session::Session(const Settings& settings) : settings_(settings) { check(settings); }

void Session::count(const std::string& op, int64_t CallCounts::*how) {
  const std::lock_guard lock(mutex_);
  ++(counts_[op].*how);
}

std::map<std::string, CallCounts> Session::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Session::add_range(const RangeCounts& more) {
  const std::lock_guard lock(mutex_);
  range_.elements += more.elements;
  range_.overflowed += more.overflowed;
  range_.small += more.small;
}

RangeCounts Session::range() const {
  const std::lock_guard lock(mutex_);
  return range_;
}

void Session::clear_counts() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
  range_ = {};
}

std::atomic<int> Session::inspected_ = 0;

void Session::start_inspection() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(is_inspected_, true)) ++inspected_;
  calls_.clear();
}

std::vector<InspectedCall> Session::stop_inspection() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_inspected_, false)) --inspected_;
  return std::exchange(calls_, {});
}

void Session::note(InspectedCall call) {
  const std::lock_guard lock(mutex_);
  if (is_inspected_) calls_.push_back(std::move(call));
}

void Session::begin_backward() {
  const std::lock_guard lock(mutex_);
  next_call_ = 0;
}

int32_t Session::exchange_exponent(int64_t elements, int32_t now) {
  const std::lock_guard lock(mutex_);
  if (next_call_ >= kLongestStep) next_call_ = 0;  // calls without a backward pass
  if (next_call_ >= needed_.size()) needed_.push_back({});
  const Needed before = std::exchange(needed_[next_call_++], {.elements = elements, .exponent = now});
  return before.elements == elements ? before.exponent : now;
}

}  // namespace plimsoll::autoscale
