#include "plimsoll/autoscale/adamw.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/ops/dtype.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::autoscale {
namespace {

using format::Format;

constexpr int64_t kBlock = 8192;         // elements: 32 KB of values, and what they are made of, stay in L2
constexpr int32_t kLargestFactor = 126;  // log2 of what FP32 multiplies by without loss, up and down

Format format_of(const at::Tensor& x) { return ops::format_of(x.scalar_type(), "autoscale"); }

char* at_element(const at::Tensor& x, int64_t index) {
  return x.defined() ? static_cast<char*>(x.data_ptr()) + index * static_cast<int64_t>(x.element_size()) : nullptr;
}

bool has_factor(const Scale& scale) { return std::abs(scale.exponent) <= kLargestFactor; }

const at::Tensor& data_of(const at::Tensor& x) { return is_scaled(x) ? scaled_impl(x).data() : x; }

bool writes_blocks(const at::Tensor& parameter) {
  if (!is_scaled(parameter)) return false;
  const ScaledTensorImpl& impl = scaled_impl(parameter);
  const Settings& settings = impl.shared().session->settings();
  return impl.is_base() && has_factor(impl.scale()) && settings.rounding != Rounding::kStochastic &&
         !settings.counts_range && settings.policy.method != Method::kAmax &&
         settings.policy.method != Method::kDelayed;
}

bool is_state(const at::Tensor& moment) {
  return data_of(moment).scalar_type() == at::kFloat && (!is_scaled(moment) || scaled_impl(moment).is_base());
}

bool is_gradient(const at::Tensor& gradient) {
  if (!is_scaled(gradient)) return gradient.scalar_type() == at::kFloat;
  return scaled_impl(gradient).scale().is_zero() || has_factor(scaled_impl(gradient).scale());
}

bool can_step(const AdamWStep& step) {
  if (!writes_blocks(step.parameter) || !is_gradient(step.gradient) || !is_state(step.moment1) ||
      !is_state(step.moment2))
    return false;
  const at::Tensor& weight = data_of(step.parameter);
  return lie_alike(weight, data_of(step.gradient)) && lie_alike(weight, data_of(step.moment1)) &&
         lie_alike(weight, data_of(step.moment2));
}

// The memory of a moment, which holds its values from now on.
at::Tensor values_of_state(const at::Tensor& moment) {
  if (!is_scaled(moment)) return moment;
  SharedScale& shared = scaled_impl(moment).shared();
  if (shared.scale.exponent != 0) set_exponent(shared, 0);
  shared.scale.bound = kUnbounded;
  return scaled_impl(moment).data();
}

// What a pass over the parameter has seen of its new values.
struct Block {
  float amax = 0;
  double sum_of_squares = 0;
  std::vector<float> values = {};  // which data of the old exponent do not hold
};

class Pass {
 public:
  explicit Pass(const AdamWStep& step)
      : step_(step),
        shared_(scaled_impl(step.parameter).shared()),
        weight_(data_of(step.parameter)),
        gradient_(data_of(step.gradient)),
        moment1_(values_of_state(step.moment1)),
        moment2_(values_of_state(step.moment2)) {
    const bool zero = !is_scaled(step.gradient) || scaled_impl(step.gradient).scale().is_zero();
    const int32_t exponent = zero ? 0 : scaled_impl(step.gradient).scale().exponent;
    gradient_factor_ = std::exp2(static_cast<float>(exponent)) * (step.maximize ? -1 : 1);
    if (keeps_remainder(step.parameter) && (!shared_.remainder.defined() || !lie_alike(weight_, shared_.remainder)))
      shared_.remainder = at::zeros_like(weight_);
    moves_ = !keeps_exponents(shared_.session->settings().policy);
    blocks_.resize(static_cast<size_t>((weight_.numel() + kBlock - 1) / kBlock));
  }

  void run() {
    runtime::parallel_for(static_cast<int64_t>(blocks_.size()), 1, [&](int64_t begin, int64_t end) {
      auto* values = static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kRows, kBlock * sizeof(float)));
      for (int64_t i = begin; i < end; ++i) update(i, values);
    });
    shared_.codes = {};
    settle();
  }

 private:
  void update(int64_t index, float* values) {
    const int64_t begin = index * kBlock, count = std::min(kBlock, weight_.numel() - begin);
    kernels::rescale({.input = at_element(weight_, begin),
                      .input_format = format_of(weight_),
                      .input_remainder = at_element(shared_.remainder, begin),
                      .output = values,
                      .count = count,
                      .factor = std::exp2(static_cast<float>(shared_.scale.exponent))});
    Block& block = blocks_[static_cast<size_t>(index)];
    block.amax = kernels::adamw({.master = values,
                                 .grad = at_element(gradient_, begin),
                                 .grad_format = format_of(gradient_),
                                 .moment1 = at_element(moment1_, begin),
                                 .moment2 = at_element(moment2_, begin),
                                 .count = count,
                                 .lr = step_.lr,
                                 .beta1 = step_.beta1,
                                 .beta2 = step_.beta2,
                                 .eps = step_.eps,
                                 .weight_decay = step_.weight_decay,
                                 .step = step_.step,
                                 .grad_scale = gradient_factor_});
    const kernels::GradientTensor tensor = {.data = values, .count = count};
    block.sum_of_squares = kernels::gradient_pass({.tensors = &tensor, .tensor_count = 1}).sum_of_squares;
    const double bound = std::log2(static_cast<double>(block.amax)) - shared_.scale.exponent;
    if (moves_ && std::isfinite(block.amax) && !fits(bound, weight_.scalar_type())) {
      block.values.assign(values, values + count);
    } else {
      write(begin, values, count);
    }
  }

  void write(int64_t begin, const float* values, int64_t count) {
    kernels::rescale({.input = values,
                      .output = at_element(weight_, begin),
                      .output_format = format_of(weight_),
                      .output_remainder = at_element(shared_.remainder, begin),
                      .count = count,
                      .factor = std::exp2(static_cast<float>(-shared_.scale.exponent))});
  }

  // The scale of the new values, at the old exponent where that is near enough.
  void settle() {
    float amax = 0;
    double sum_of_squares = 0;
    for (const Block& block : blocks_) {
      amax = std::isfinite(amax) ? std::max(amax, block.amax) : amax;
      if (!std::isfinite(block.amax)) amax = block.amax;
      sum_of_squares += block.sum_of_squares;
    }
    const at::ScalarType dtype = weight_.scalar_type();
    if (!std::isfinite(amax) || amax == 0) {
      shared_.scale.bound = largest_bound(dtype) + 1;
      return;
    }
    const Scale needed = scale_of(std::sqrt(sum_of_squares / static_cast<double>(weight_.numel())), amax);
    shared_.scale = with_exponent(needed, shared_.scale.exponent);
    if (!moves_) shared_.scale.bound = std::min(shared_.scale.bound, largest_bound(dtype) + 1);
    if (!moves_ || (fits(shared_.scale.bound, dtype) && std::fabs(shared_.scale.remainder) < kSlack)) return;
    set_exponent(shared_, needed.exponent);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const std::vector<float>& values = blocks_[i].values;
      if (!values.empty()) write(static_cast<int64_t>(i) * kBlock, values.data(), static_cast<int64_t>(values.size()));
    }
  }

  const AdamWStep& step_;
  SharedScale& shared_;
  const at::Tensor weight_, gradient_, moment1_, moment2_;
  float gradient_factor_ = 1;
  bool moves_ = true;  // the session's policy lets the exponent change
  std::vector<Block> blocks_;
};

}  // namespace

bool step_adamw(const AdamWStep& step) {
  if (!can_step(step)) return false;
  Pass(step).run();
  return true;
}

}  // namespace plimsoll::autoscale
