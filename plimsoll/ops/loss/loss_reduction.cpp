#include "plimsoll/ops/loss/loss_reduction.h"

#include <ATen/ops/sum.h>

namespace plimsoll::ops {

at::Tensor weight_of_targets(const at::Tensor& targets, int64_t ignore_index, const at::Tensor& class_weight) {
  const at::Tensor flat = targets.flatten();
  if (!class_weight.defined()) return flat.ne(ignore_index).sum().to(at::kDouble);
  const at::Tensor weight = class_weight.index_select(0, flat.clamp(0, class_weight.size(0) - 1));
  return at::sum(weight.masked_fill(flat.eq(ignore_index), 0), at::kDouble);
}

at::Tensor reduced_losses(const at::Tensor& losses, Reduction reduction, const at::Tensor& total_weight) {
  if (reduction == Reduction::kNone) return losses;
  const at::Tensor total = at::sum(losses, at::kDouble);
  return (reduction == Reduction::kMean ? total.div(total_weight) : total).to(at::kFloat);
}

at::Tensor factor_of_mean(const at::Tensor& total_weight) { return total_weight.reciprocal().to(at::kFloat); }

}  // namespace plimsoll::ops
