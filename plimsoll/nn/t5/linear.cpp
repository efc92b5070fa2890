#include "plimsoll/nn/t5/linear.h"

#include <ATen/ops/empty.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/linear.h"

namespace plimsoll::nn {

at::Tensor T5Product::operator()(const at::Tensor& x, const at::Tensor& weight) const {
  if (codes_ != nullptr) return codes_->multiply(x);
  return ops::linear(x, weight, {}, amp::linear_scaling(state_, weight));
}

T5LinearImpl::T5LinearImpl(int64_t in, int64_t out) : in_features(in), out_features(out) { T5LinearImpl::reset(); }

void T5LinearImpl::reset() {
  weight = register_parameter("weight", at::empty({out_features, in_features}));
  products_.clear();
  product_.use(register_product());
}

void T5LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::T5Linear(in_features=" << in_features << ", out_features=" << out_features << ")";
}

void T5LinearImpl::quantize(const at::Tensor& source) {
  product_.quantize(source);
  weight.set_requires_grad(false);
  weight.set_data(at::empty({0}));
}

}  // namespace plimsoll::nn
