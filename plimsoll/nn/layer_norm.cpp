#include "plimsoll/nn/layer_norm.h"

#include "plimsoll/nn/precision.h"

namespace plimsoll::nn {
namespace {

ops::NormOptions norm_options(Normalization kind, const LayerNormOptions& options) {
  return {.kind = kind, .zero_centered = options.zero_centered_gamma, .epsilon = options.eps};
}

}  // namespace

NormImpl::NormImpl(int64_t hidden, const ops::NormOptions& settings) : hidden_size(hidden), options(settings) {
  NormImpl::reset();
}

void NormImpl::reset() {
  affine_ = {};
  affine_.register_in(*this, "", hidden_size, options);
}

void NormImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::" << (options.kind == Normalization::kLayerNorm ? "LayerNorm(" : "RmsNorm(") << hidden_size
         << ", eps=" << options.epsilon << ")";
}

ops::NormOutput NormImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  return ops::norm({.x = x, .residual = residual, .weight = affine_.weight, .bias = affine_.bias}, options,
                   scope_dtype(x.device().type()));
}

LayerNorm::LayerNorm(int64_t hidden_size, const LayerNormOptions& options)
    : Norm(hidden_size, norm_options(Normalization::kLayerNorm, options)) {}

RmsNorm::RmsNorm(int64_t hidden_size, const LayerNormOptions& options)
    : Norm(hidden_size, norm_options(Normalization::kRmsNorm, options)) {}

}  // namespace plimsoll::nn
