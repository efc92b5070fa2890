#include "plimsoll/models/t5/key_mask.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "plimsoll/format/format.h"

namespace plimsoll::models {
namespace {

// true = masked, broadcastable to [batch, 1, queries, keys]; undefined where every query sees every key.
at::Tensor hidden_keys(const at::Tensor& present, const T5KeyMaskOptions& options) {
  at::Tensor hidden = present.defined() ? present.logical_not().unsqueeze(1).unsqueeze(1) : at::Tensor();
  const int64_t offset = kernels::causal_offset(options.causal, options.queries, options.keys);
  if (options.causal != ops::Causal::kNone && offset + 1 < options.keys) {  // the first query does not see every key
    const at::Tensor later =
        at::ones({options.queries, options.keys}, at::kBool).triu(offset + 1).unsqueeze(0).unsqueeze(0);
    hidden = hidden.defined() ? hidden.logical_or(later) : later;
  }
  return hidden;
}

T5KeyMask additive_mask(const at::Tensor& present, const T5KeyMaskOptions& options) {
  const at::Tensor hidden = hidden_keys(present, options);
  if (!hidden.defined()) return {};
  const double scale = options.numerics->mask_scale;
  const double lowest = -static_cast<double>(format::max_finite(format::Format::kFp16)) * scale;
  return {.additive = at::zeros(hidden.sizes(), at::kHalf).masked_fill_(hidden, lowest), .saturates = scale == 1};
}

}  // namespace

T5KeyMask key_mask(const at::Tensor& attention_mask, const T5KeyMaskOptions& options) {
  at::Tensor present;
  if (attention_mask.defined()) {
    TORCH_CHECK(attention_mask.dim() == 2 && attention_mask.size(1) == options.keys,
                "t5: expected an attention mask [batch, ", options.keys, "], got ", attention_mask.sizes());
    present = attention_mask.ne(0);
    if (present.all().item<bool>()) present = at::Tensor();
  }
  if (options.numerics && options.dtype == at::kHalf) return additive_mask(present, options);
  T5KeyMask result{.causal = options.causal};
  if (!present.defined()) return result;
  const at::Tensor lengths = present.sum(1);
  const at::Tensor prefix = at::arange(options.keys).unsqueeze(0).lt(lengths.unsqueeze(1));
  if (prefix.eq(present).all().item<bool>()) {
    result.lengths = lengths;
  } else {
    result.mask = hidden_keys(present, {.keys = options.keys});
  }
  return result;
}

}  // namespace plimsoll::models
