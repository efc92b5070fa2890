#include "plimsoll/ops/linear/linear_composed.h"

#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>

#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

// Codes of a recipe would be made of memory.
void check_composed(const LinearScaling& scaling) {
  const recipe::Recipe* recipe = scaling.recipe.get();
  TORCH_CHECK(
      recipe == nullptr || (recipe->high_precision() && recipe->high_precision_format() == format::Format::kFp32),
      "linear: expected no recipe around tensors without memory of their own, such as scaled ones, got ",
      recipe->name(), "; autoscale has formats of products of its own");
  TORCH_CHECK(scaling.parallel.mode == ParallelMode::kNone && !scaling.main_grad.defined(),
              "linear: expected a layer that is whole, without main_grad, for tensors without memory of their own");
}

}  // namespace

at::Tensor composed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const LinearScaling& scaling) {
  check_composed(scaling);
  return at::linear(x, weight, optional(bias));
}

}  // namespace plimsoll::ops
