#include "plimsoll/amp/fp8_autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "plimsoll/amp/scale_tape.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::amp {
namespace {

thread_local Fp8Autocast* innermost = nullptr;

}  // namespace

const ops::SharedRecipe& RecipesByFormat::of(format::Format format) const {
  if (format == format::Format::kFp32) return fp32;
  if (format == format::Format::kBf16) return bf16;
  TORCH_CHECK(format == format::Format::kFp16, "autocast: expected high precision of fp32, bf16 or fp16, got ",
              format::info(format).name);
  return fp16;
}

Fp8Autocast::Fp8Autocast(Fp8AutocastOptions options) : outer_(innermost), exceptions_(std::uncaught_exceptions()) {
  if (options.enabled && options.by_format != nullptr) {
    scope_.by_format = std::move(options.by_format);
    scope_.recipe = scope_.by_format->fp32;
  } else if (options.enabled) {
    scope_.recipe = std::make_shared<const recipe::Recipe>(std::move(options.recipe));
    scope_.precision = std::move(options.precision);
  }
  if (outer_ != nullptr) {
    scope_.step = outer_->scope_.step;
    scope_.reduction = outer_->scope_.reduction;
  }
  if (options.enabled && scope_.step == nullptr) {
    scope_.reduction = options.reduction;
    // Without gradients nothing is recorded on any rank, so there is nothing to reduce.
    const bool records = at::GradMode::is_enabled();
    scope_.step = std::make_shared<ops::ScalingStep>(scope_.recipe, records ? options.reduction : nullptr);
    owns_step_ = true;
  }
  innermost = this;
}

Fp8Autocast::Fp8Autocast(Fp8Scope again)
    : scope_(std::move(again)), outer_(innermost), exceptions_(std::uncaught_exceptions()) {
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
  Fp8Autocast** link = &innermost;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  TORCH_CHECK(*link == this, "Fp8Autocast: expected a scope to end on the thread that it began on");
  *link = outer_;
  ended_ = true;
}

void Fp8Autocast::end() {
  if (ended_) return;
  leave();
  if (owns_step_) scope_.step->end_forward();
}

void Fp8Autocast::abandon() {
  if (!ended_) leave();
}

std::shared_ptr<ops::ScalingStep> Fp8Autocast::release() {
  abandon();
  return owns_step_ ? scope_.step : nullptr;
}

Fp8Scope current_scope() { return innermost == nullptr ? Fp8Scope{} : innermost->scope_; }

ops::SharedRecipe current_recipe() { return current_scope().recipe; }

std::shared_ptr<ops::ScalingStep> current_step() { return current_scope().step; }

std::optional<at::ScalarType> torch_autocast_dtype(c10::DeviceType device) {
  if (device == at::kMeta) device = at::kCPU;
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

ops::SharedRecipe recipe_for(const at::Tensor& parameter) {
  const Fp8Scope* const scope = innermost == nullptr ? nullptr : &innermost->scope_;
  if (scope != nullptr && scope->recipe != nullptr && scope->by_format == nullptr) return scope->recipe;
  const at::ScalarType dtype = torch_autocast_dtype(parameter.device().type()).value_or(parameter.scalar_type());
  const format::Format wide = ops::format_of(dtype, "autocast");
  if (scope != nullptr && scope->by_format != nullptr) return scope->by_format->of(wide);
  return std::make_shared<const recipe::Recipe>(recipe::HighPrecision{.format = wide});
}

ops::SharedRecipe controlled_recipe(ops::PrecisionController& precision,
                                    const std::shared_ptr<ops::LinearState>& state) {
  const bool learns = at::GradMode::is_enabled() || repeats_layers();
  return learns ? ops::recipe_for(precision, state) : ops::evaluation_recipe_for(precision, state);
}

ops::SharedRecipe without_codes(const ops::SharedRecipe& recipe, const std::string& layer, const char* reason) {
  if (recipe->high_precision()) return recipe;
  if (watch::Audit* const audit = watch::auditing(); audit != nullptr) audit->explain_layer(layer, reason);
  const recipe::HighPrecision uncoded{.format = recipe->high_precision_format()};
  return std::make_shared<const recipe::Recipe>(uncoded);
}

ops::LinearScaling linear_scaling(std::shared_ptr<ops::LinearState> state, const at::Tensor& weight,
                                  std::optional<bool> is_first_microbatch) {
  std::shared_ptr<ops::PrecisionController> precision = current_scope().precision;
  if (state == nullptr || state->high_precision) precision = nullptr;
  ops::SharedRecipe recipe = precision != nullptr ? controlled_recipe(*precision, state) : recipe_for(weight);
  if (state != nullptr && state->high_precision) {
    recipe = without_codes(recipe, state->name, "the model's plan has this layer in high precision");
  }
  return {.recipe = std::move(recipe),
          .state = taped(std::move(state)),
          .step = current_step(),
          .precision = precision,
          .is_first_microbatch = is_first_microbatch,
          .runs_again = repeats_layers()};
}

}  // namespace plimsoll::amp
