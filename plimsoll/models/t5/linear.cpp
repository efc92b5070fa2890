#include "plimsoll/models/t5/linear.h"

#include <ATen/ops/empty.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/linear/linear.h"

namespace plimsoll::models {

T5LinearImpl::T5LinearImpl(int64_t in, int64_t out) : in_features(in), out_features(out) { T5LinearImpl::reset(); }

void T5LinearImpl::reset() {
  weight_ = register_parameter("weight", at::empty({out_features, in_features}));
  restart_products();
  register_product();
}

void T5LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::T5Linear(in_features=" << in_features << ", out_features=" << out_features << ")";
}

at::Tensor T5LinearImpl::forward(const at::Tensor& x) const {
  // Whoever multiplies by codes reads no value.
  const at::Tensor weight =
      is_quantized() ? at::empty({1}, x.options()).expand({out_features, in_features}) : this->weight();
  return ops::linear(x, weight, {}, amp::linear_scaling(products_.front().state, weight));
}

void T5LinearImpl::quantize(ops::CodeSource source, ops::CodeKind kind) {
  code_source_ = std::move(source);
  code_kind_ = kind;
  products_.front().state->weight_source.hold(
      std::make_shared<ops::HeldWeight>(std::vector{code_source_}, ops::HeldOptions{.kind = kind}));
  tied_to_ = nullptr;
  weight_.set_requires_grad(false);
  weight_.set_data(at::empty({0}));
}

void T5LinearImpl::tie(T5Weight other) {
  weight_.set_data(at::empty({0}));
  tied_to_ = std::move(other);
}

}  // namespace plimsoll::models
