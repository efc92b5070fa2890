#include "plimsoll/ops/linear/linear_parallel.h"

#include <c10/util/Exception.h>

namespace plimsoll::ops {

using recipe::Role;

bool LinearParallel::gathers(Role role) const {
  if (!sequence || group == nullptr) return false;
  return (role == Role::kInput && mode == ParallelMode::kColumn) ||
         (role == Role::kGradOutput && mode == ParallelMode::kRow);
}

std::vector<int64_t> LinearParallel::product_sizes(at::IntArrayRef input_sizes) const {
  std::vector<int64_t> sizes = input_sizes.vec();
  if (gathers(Role::kInput)) sizes[0] *= group->size();
  return sizes;
}

at::Tensor LinearParallel::summed(const at::Tensor& product) const {
  return sequence ? group->reduce_scatter(product) : group->all_reduce(product);
}

at::Tensor LinearParallel::output(const at::Tensor& product) const {
  return mode == ParallelMode::kRow ? summed(product) : product;
}

at::Tensor LinearParallel::grad_input(const at::Tensor& product) const {
  return mode == ParallelMode::kColumn ? summed(product) : product;
}

void check_parallel(const LinearParallel& parallel, const at::Tensor& x, const at::Tensor& bias, const char* op) {
  TORCH_CHECK((parallel.mode == ParallelMode::kNone) == (parallel.group == nullptr), op,
              ": expected a group with parallel_mode, got one without the other");
  TORCH_CHECK(parallel.mode != ParallelMode::kRow || !bias.defined(), op,
              ": expected no bias with parallel_mode 'row', which adds it to the sum of the ranks, got one");
  if (!parallel.sequence || !x.defined()) return;
  const int64_t ranks = parallel.gathers(Role::kGradOutput) ? parallel.group->size() : 1;
  TORCH_CHECK(x.dim() >= 2 && x.size(0) % ranks == 0, op,
              ": expected x [tokens, ..., in] with sequence_parallel, and tokens that the ", ranks,
              " ranks which share them divide, got ", x.sizes());
}

}  // namespace plimsoll::ops
