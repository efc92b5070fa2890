#include "plimsoll/autoscale/one_scale.h"

#include <ATen/TensorOperators.h>

#include <optional>
#include <vector>

#include "plimsoll/autoscale/inspection.h"
#include "plimsoll/autoscale/several_scales.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// One power of two for all.
at::Tensor in_one_scale(const at::Tensor& x) {
  ScaledOptions options = options_like(x, {});
  const Encoded encoded =
      encode({.data = value_of(x)}, *options.session,
             {.dtype = storage_dtype(*options.session, x.dim(), options.wide), .origin = Origin::kEntering});
  options.scale = encoded.scale;
  return make_scaled(encoded.data, options);
}

// The tensor's value in FP32, with what rounding cut off.
at::Tensor in_fp32(const at::Tensor& x) {
  ScaledOptions options = options_like(x, {.bound = kUnbounded});
  options.wide = true;
  return make_scaled(value_to_write(scaled_impl(x)), options);
}

bool writes(const Plan& plan, size_t argument) {
  return plan.arguments[argument].written || (argument == 0 && plan.in_place);
}

bool writes_any(const Plan& plan) {
  for (size_t i = 0; i < plan.arguments.size(); ++i)
    if (writes(plan, i)) return true;
  return false;
}

// A copy that a call wrote into, and the tensor that it stands for.
struct WrittenCopy {
  at::Tensor target, copy;
};

class OneScaleCall {
 public:
  OneScaleCall(const Plan& plan, Stack& stack) : plan_(plan), stack_(stack), exact_(writes_any(plan)) {}

  void run() {
    for (size_t i = 0; i < plan_.arguments.size(); ++i)
      replace(stack_[stack_.size() - plan_.arguments.size() + i], writes(plan_, i));
    run_inspected(plan_, stack_);
    for (const WrittenCopy& each : written_) {
      for (size_t i = stack_.size() - plan_.results.size(); i < stack_.size(); ++i)
        if (stack_[i].isTensor() && stack_[i].toTensor().is_same(each.copy)) stack_[i] = each.target;
      const at::Tensor value = value_of(each.copy);
      assign(without_scales(each.target), {.data = value / spread(scaled_impl(each.target).scales(), value.sizes())});
    }
  }

 private:
  at::Tensor replaced(const at::Tensor& x, bool written) {
    if (!has_scales(x)) return x;
    scaled_impl(x).shared().session->count(kOneScale, &CallCounts::storage);
    const at::Tensor copy = exact_ ? in_fp32(x) : in_one_scale(x);
    if (written) written_.push_back({x, copy});
    return copy;
  }

  void replace(c10::IValue& value, bool written) {
    if (value.isTensor()) {
      value = replaced(value.toTensor(), written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& x : value.toTensorVector()) list.push_back(replaced(x, written));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector())
        list.push_back(x ? std::optional(replaced(*x, written)) : std::nullopt);
      value = std::move(list);
    }
  }

  const Plan& plan_;
  Stack& stack_;
  const bool exact_;  // what is written is rounded once
  std::vector<WrittenCopy> written_;
};

}  // namespace

void run_in_one_scale(const Plan& plan, Stack& stack) { OneScaleCall(plan, stack).run(); }

}  // namespace plimsoll::autoscale
