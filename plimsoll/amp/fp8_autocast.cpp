#include "plimsoll/amp/fp8_autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "plimsoll/ops/dtype.h"

namespace plimsoll::amp {
namespace {

thread_local Fp8Autocast* innermost = nullptr;

}  // namespace

Fp8Autocast::Fp8Autocast(Fp8AutocastOptions options) : outer_(innermost), exceptions_(std::uncaught_exceptions()) {
  if (options.enabled) recipe_ = std::make_shared<const recipe::Recipe>(std::move(options.recipe));
  if (outer_ != nullptr) step_ = outer_->step_;
  if (options.enabled && step_ == nullptr) {
    // Without gradients nothing is recorded on any rank, so there is nothing to reduce.
    step_ = std::make_shared<ops::ScalingStep>(recipe_, at::GradMode::is_enabled() ? options.reduction : nullptr);
    owns_step_ = true;
  }
  innermost = this;
}

Fp8Autocast::~Fp8Autocast() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) {
    abandon();
  } else {
    end();
  }
}

void Fp8Autocast::leave() {
  TORCH_INTERNAL_ASSERT(innermost == this, "Fp8Autocast: expected scopes to end in reverse order");
  innermost = outer_;
  ended_ = true;
}

void Fp8Autocast::end() {
  if (ended_) return;
  leave();
  if (owns_step_) step_->end_forward();
}

void Fp8Autocast::abandon() {
  if (!ended_) leave();
}

ops::SharedRecipe current_recipe() { return innermost == nullptr ? nullptr : innermost->recipe_; }

std::shared_ptr<ops::ScalingStep> current_step() { return innermost == nullptr ? nullptr : innermost->step_; }

ops::SharedRecipe recipe_for(const at::Tensor& parameter) {
  if (ops::SharedRecipe recipe = current_recipe()) return recipe;
  const at::DeviceType device = parameter.device().type();
  const at::ScalarType dtype =
      at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : parameter.scalar_type();
  return std::make_shared<const recipe::Recipe>(recipe::HighPrecision{.format = ops::format_of(dtype, "autocast")});
}

ops::LinearScaling linear_scaling(std::shared_ptr<ops::LinearState> state, const at::Tensor& weight,
                                  std::optional<bool> is_first_microbatch) {
  return {.recipe = recipe_for(weight),
          .state = std::move(state),
          .step = current_step(),
          .is_first_microbatch = is_first_microbatch};
}

}  // namespace plimsoll::amp
