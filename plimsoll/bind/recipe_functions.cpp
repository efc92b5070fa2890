#include "plimsoll/bind/recipe_functions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <algorithm>

#include "plimsoll/ops/dispatcher/find_operator.h"

namespace plimsoll::bind {
namespace {

at::Tensor one(float value) { return at::full({1}, value); }

}  // namespace

recipe::AmaxFunction amax_function(int64_t number) {
  return [number](std::span<const float> history) {
    // One column, as Transformer Engine's histories have one for each tensor.
    const at::Tensor copy = at::empty({static_cast<int64_t>(history.size()), 1}, at::kFloat);
    std::ranges::copy(history, copy.mutable_data_ptr<float>());
    static const auto op = ops::find_operator<double(const at::Tensor&, int64_t)>("plimsoll::recipe_amax");
    return static_cast<float>(op.call(copy, number));
  };
}

recipe::InvScaleFunction inv_scale_function(int64_t number) {
  return [number](const recipe::InvScaleInput& input) {
    using Signature = double(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t);
    static const auto op = ops::find_operator<Signature>("plimsoll::recipe_inv_scale");
    return static_cast<float>(
        op.call(one(input.amax), one(input.old_inv_scale), one(input.max_finite), input.margin, number));
  };
}

// Implemented in plimsoll/pytorch/recipe_functions.py.
TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("recipe_amax(Tensor history, int number) -> float");
  library.def(
      "recipe_inv_scale(Tensor amax, Tensor old_inv_scale, Tensor max_finite, *, int margin, int number) -> float");
}

}  // namespace plimsoll::bind
