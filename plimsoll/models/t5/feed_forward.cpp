#include "plimsoll/models/t5/feed_forward.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tanh.h>

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
  const bool in_steps = numerics && numerics->gelu_guard == 0 && x.scalar_type() == at::kHalf &&
                        config.feed_forward == kernels::Activation::kGeglu;
  if (!in_steps) return ops::activation(up_.joined(x), config.feed_forward);
  const std::vector<at::Tensor> parts = up_.parts(x);
  return gelu_in_steps(parts[0]) * parts[1];
}

at::Tensor T5DenseReluDenseImpl::forward(const at::Tensor& x, const T5Numerics& numerics) {
  const at::Tensor inner = at::dropout(hidden(x, numerics), config.dropout_rate, is_training());
  nn::report_values(wo->path(), "hidden", inner);
  const double scale = numerics && x.scalar_type() == at::kHalf ? numerics->downproject_scale : 1;
  if (scale == 1) return down_.joined(inner);
  return down_.joined(inner * (1 / scale)).to(at::kFloat) * scale;
}

}  // namespace plimsoll::models
