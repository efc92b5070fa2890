#include "plimsoll/models/t5/feed_forward.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/activation/activation.h"

namespace plimsoll::models {
namespace {

// tanh-GELU as Hugging Face's gelu_new writes it, each step rounded to the dtype of x: in FP16 x^3 is Inf from |x| = 41
// on, which tanh absorbs, and the gradient of x^3 is from |x| = 148 on, which makes NaN.
at::Tensor gelu_in_steps(const at::Tensor& x) {
  constexpr double kSqrtTwoOverPi = 0.7978845608028654;
  return 0.5 * x * (1.0 + at::tanh(kSqrtTwoOverPi * (x + 0.044715 * at::pow(x, 3.0))));
}

// From here on tanh-GELU and ReLU are the same FP16 numbers, and so are their gradients.
constexpr double kGeluIsRelu = 10;

at::Tensor guarded_gelu(const at::Tensor& x, double guard) {
  return at::where(x.abs().gt(guard), at::relu(x), ops::activation(x, kernels::Activation::kGelu));
}

}  // namespace

T5DenseReluDenseImpl::T5DenseReluDenseImpl(const T5Config& settings) : config(settings) {
  T5DenseReluDenseImpl::reset();
}

void T5DenseReluDenseImpl::reset() {
  if (config.gated()) {
    wi_0 = register_module("wi_0", T5Linear(config.d_model, config.d_ff));
    wi_1 = register_module("wi_1", T5Linear(config.d_model, config.d_ff));
  } else {
    wi = register_module("wi", T5Linear(config.d_model, config.d_ff));
  }
  wo = register_module("wo", T5Linear(config.d_ff, config.d_model));
  up_ = config.gated() ? T5Product({wi_0, wi_1}) : T5Product({wi});
  down_ = T5Product({wo});
}

at::Tensor T5DenseReluDenseImpl::hidden(const at::Tensor& x, const T5Numerics& numerics) {
  const double guard = numerics && x.scalar_type() == at::kHalf ? numerics->gelu_guard : kGeluIsRelu;
  const bool is_gelu =
      config.feed_forward == kernels::Activation::kGeglu || config.feed_forward == kernels::Activation::kGelu;
  if (!is_gelu || guard >= kGeluIsRelu) return ops::activation(up_.joined(x), config.feed_forward);
  const std::vector<at::Tensor> parts = up_.parts(x);
  const at::Tensor gate = guard == 0 ? gelu_in_steps(parts[0]) : guarded_gelu(parts[0], guard);
  return parts.size() == 2 ? gate * parts[1] : gate;
}

at::Tensor T5DenseReluDenseImpl::forward(const at::Tensor& x, const T5Numerics& numerics) {
  const at::Tensor inner = at::dropout(hidden(x, numerics), config.dropout_rate, is_training());
  nn::report_values(wo->path(), "hidden", inner);
  const double scale = numerics && x.scalar_type() == at::kHalf ? numerics->downproject_scale : 1;
  if (scale == 1) return down_.joined(inner);
  return down_.joined(inner * (1 / scale)).to(at::kFloat) * scale;
}

}  // namespace plimsoll::models
