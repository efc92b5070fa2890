#include "plimsoll/autoscale/moves.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/autoscale/casts.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

c10::IValue& argument(const Plan& plan, Stack& stack, size_t index) {
  return stack[stack.size() - plan.arguments.size() + index];
}

void finish_with(const Plan& plan, Stack& stack, at::Tensor result) {
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(std::move(result));
}

void count_move(const Plan& plan, const at::Tensor& tensor) {
  scaled_impl(tensor).shared().session->count(plan.name, &CallCounts::storage);
}

// The operator on a plain tensor in place of its first argument, with this dtype.
at::Tensor run_as(const Plan& plan, Stack& stack, const at::Tensor& self, at::ScalarType dtype) {
  argument(plan, stack, 0) = self;
  argument(plan, stack, static_cast<size_t>(plan.dtype_argument)) = static_cast<int64_t>(dtype);
  plan.run.callBoxed(stack);
  return torch::jit::pop(stack).toTensor();
}

// A tensor of its kind, of data that `plan` makes from the data of self. A plain one where self's kind cannot be it.
void like(const Plan& plan, Stack& stack, const Scale& scale, bool wide) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const at::ScalarType logical = asked_dtype(plan, stack).value_or(self.scalar_type());
  const std::shared_ptr<Session>& session = impl.shared().session;
  const bool plain = !at::isFloatingType(logical) || asks_for_plain(plan, stack);
  count_move(plan, self);
  const BelowAutoscale below;
  const at::Tensor data = run_as(plan, stack, impl.data(), plain ? logical : storage_dtype(*session, self.dim(), wide));
  if (plain) {
    stack.emplace_back(data);
    return;
  }
  const bool gradient = scaled_impl(self).shared().gradient;
  stack.emplace_back(
      make_scaled(data, {.scale = scale, .session = session, .logical = logical, .wide = wide, .gradient = gradient}));
}

// The gradient of a loss with respect to itself, with which a backward pass begins: 1, where the session says.
at::Tensor first_gradient(const at::Tensor& loss) {
  const std::shared_ptr<Session>& session = scaled_impl(loss).shared().session;
  const Policy& policy = session->settings().policy;
  const int32_t exponent = policy.method == Method::kFixed ? policy.exponent : session->gradient_exponent();
  session->begin_backward();
  return make_scaled(at::full({}, std::exp2(-exponent), at::kFloat),
                     {.scale = {.exponent = exponent, .remainder = -1.0 * exponent, .bound = -1.0 * exponent},
                      .session = session,
                      .logical = loss.scalar_type(),
                      .gradient = true});
}

}  // namespace

bool asks_for_plain(const Plan& plan, const Stack& stack) {
  const auto asked = [&](const char* name) -> const c10::IValue& {
    const int index = *plan.run.schema().argumentIndexWithName(name);
    return stack[stack.size() - plan.arguments.size() + static_cast<size_t>(index)];
  };
  const c10::IValue &device = asked("device"), &layout = asked("layout");
  return (!device.isNone() && !device.toDevice().is_cpu()) ||
         (!layout.isNone() && layout.toLayout() != c10::Layout::Strided);
}

void run_view(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  TORCH_CHECK(is_scaled(self), plan.name, ": expected a scaled tensor as the one that is viewed, got a plain one");
  const ScaledTensorImpl& impl = scaled_impl(self);
  const BelowAutoscale below;
  argument(plan, stack, 0) = impl.data();
  plan.run.callBoxed(stack);
  const auto result_of = [&](const at::Tensor& data) {
    return data.is_alias_of(impl.data()) ? make_view(data, impl) : make_scaled(data, options_like(self, impl.scale()));
  };
  for (size_t i = stack.size() - plan.results.size(); i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor()) {
      value = result_of(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(result_of(tensor));
      value = std::move(list);
    }
  }
}

void run_view_in_place(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  auto* impl = dynamic_cast<ScaledTensorImpl*>(self.unsafeGetTensorImpl());
  TORCH_CHECK(impl != nullptr && !impl->scales().defined(), plan.name,
              ": expected a scaled tensor of one scale that is no parameter of a C++ module");
  const BelowAutoscale below;
  const at::Tensor data = impl->data().detach();
  argument(plan, stack, 0) = data;
  plan.run.callBoxed(stack);
  impl->set_view(data);
  stack.back() = self;
}

void refuse_view_of_bits(const Plan&, Stack&) {
  TORCH_CHECK(
      false,
      "view: expected a shape, got a dtype; the bits of a scaled tensor are not those of its value. Use to(dtype)");
}

void clone(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const SharedScale& shared = impl.shared();
  count_move(plan, self);
  const BelowAutoscale below;
  argument(plan, stack, 0) = impl.data();
  plan.run.callBoxed(stack);
  const at::Tensor copy = make_scaled(torch::jit::pop(stack).toTensor(), options_like(self, shared.scale));
  scaled_impl(copy).shared().parameter = shared.parameter;
  if (impl.is_base() && shared.remainder.defined()) scaled_impl(copy).shared().remainder = shared.remainder.clone();
  stack.emplace_back(copy);
}

void copy_into(const Plan& plan, Stack& stack) {
  at::Tensor self = argument(plan, stack, 0).toTensor();
  const at::Tensor source = argument(plan, stack, 1).toTensor();
  count_move(plan, is_scaled(self) ? self : source);
  {
    const BelowAutoscale below;
    copy_value(self, source);
  }
  finish_with(plan, stack, self);
}

void copy_value(const at::Tensor& target, const at::Tensor& source) {
  if (!is_scaled(target)) {
    target.copy_(value_of(source));
    return;
  }
  const at::ScalarType dtype = target.scalar_type();
  const bool rounds = is_narrow(dtype) && source.scalar_type() != dtype;
  if (!is_scaled(source)) {
    const at::Tensor values = measurable(source);
    assign(target, {.data = rounds ? cast_values(values, dtype) : values});
    return;
  }
  assign_scaled(target, rounds ? with_cast_values(source, cast_values(source, dtype), dtype) : source);
}

void fill(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const c10::IValue& given = argument(plan, stack, 1);
  count_move(plan, is_scaled(self) ? self : given.toTensor());
  {
    const BelowAutoscale below;
    const at::Tensor number =
        given.isTensor() ? value_of(given.toTensor()) : at::full({}, given.toScalar(), at::kFloat);
    TORCH_CHECK(number.dim() == 0, "fill_: expected a value without dimensions, got one of sizes ", number.sizes());
    copy_value(self, number);
  }
  finish_with(plan, stack, self);
}

void zero(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  count_move(plan, self);
  {
    const BelowAutoscale below;
    impl.data().zero_();
    const at::Tensor remainder = impl.is_whole() ? at::Tensor() : remainder_of(impl);
    if (remainder.defined()) {
      remainder.zero_();
    } else {
      impl.shared().remainder.reset();
    }
  }
  impl.shared().codes = {};
  if (impl.is_whole()) impl.shared().scale = zero_scale();
  finish_with(plan, stack, self);
}

void to_dtype(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const at::ScalarType logical = asked_dtype(plan, stack).value_or(self.scalar_type());
  count_move(plan, self);
  const BelowAutoscale below;
  if (!at::isFloatingType(logical) || asks_for_plain(plan, stack)) {
    stack.emplace_back(run_as(plan, stack, value_of(self), logical));
  } else if (is_narrow(logical) && logical != self.scalar_type()) {
    const at::Tensor cast = run_as(plan, stack, value_of(self), logical);
    stack.emplace_back(with_cast_values(self, cast.to(at::kFloat), logical));
  } else {
    const at::Tensor data = run_as(plan, stack, impl.data(), impl.data().scalar_type());
    ScaledOptions options = options_like(self, impl.scale());
    options.logical = logical;
    stack.emplace_back(make_scaled(data, options));
  }
}

void zeros_like(const Plan& plan, Stack& stack) {
  const at::Tensor& self = argument(plan, stack, 0).toTensor();
  like(plan, stack, zero_scale(), scaled_impl(self).shared().wide || (self.requires_grad() && self.is_leaf()));
}

void ones_like(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  if (self.dim() > 0 || !at::isFloatingType(asked_dtype(plan, stack).value_or(self.scalar_type())) ||
      asks_for_plain(plan, stack))
    return like(plan, stack, Scale{}, false);
  count_move(plan, self);
  const BelowAutoscale below;
  finish_with(plan, stack, first_gradient(self));
}

}  // namespace plimsoll::autoscale
