#include "plimsoll/models/padding.h"

#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>

namespace plimsoll::models {

TokensFirst::TokensFirst(const at::Tensor& tokens, const at::Tensor& attention_mask) {
  if (!attention_mask.defined()) return;
  TORCH_CHECK(attention_mask.sizes() == tokens.sizes(), "model: expected an attention_mask ", tokens.sizes(), ", got ",
              attention_mask.sizes());
  const at::Tensor is_padding = attention_mask == 0;
  if (!is_padding.any().item<bool>()) return;
  counts_ = is_padding.logical_not().sum(1);
  const at::Tensor order = is_padding.to(at::kByte).argsort(/*stable=*/true, /*dim=*/1);
  const at::Tensor as_it_is = at::arange(tokens.size(1), order.options()).expand_as(order);
  if (!order.equal(as_it_is)) order_ = order;
}

at::Tensor TokensFirst::gathered(const at::Tensor& x) const { return order_.defined() ? x.gather(1, order_) : x; }

at::Tensor TokensFirst::scattered(const at::Tensor& x) const {
  if (!order_.defined()) return x;
  return x.gather(1, order_.argsort(/*stable=*/true, /*dim=*/1).unsqueeze(2).expand_as(x));
}

}  // namespace plimsoll::models
