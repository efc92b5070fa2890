#include "plimsoll/ops/loss/cross_entropy.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "plimsoll/ops/loss/cross_entropy_op.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// values * factor in dtype; values themselves where nothing changes.
at::Tensor scaled(const at::Tensor& values, const at::Tensor& factor, at::ScalarType dtype) {
  const bool known = !at::isTensorSubclassLike(factor) && factor.device().is_cpu();
  if (known && factor.item<double>() == 1) return values.to(dtype);
  return at::mul(values, factor).to(dtype);
}

void save_options(AutogradContext* context, const CrossEntropyOptions& options) {
  context->saved_data["reduction"] = static_cast<int64_t>(options.reduction);
  context->saved_data["ignore_index"] = options.ignore_index;
  context->saved_data["label_smoothing"] = options.label_smoothing;
}

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            const CrossEntropyOptions& options, bool records) {
    const bool fused = options.reduction != Reduction::kNone && logits.scalar_type() != at::kHalf && !logits.is_cuda();
    const auto [loss, grad] = dispatch::cross_entropy_forward(logits, targets, options, records && fused);
    if (!records) return loss;
    save_options(context, options);
    context->saved_data["fused"] = fused;
    context->save_for_backward(fused ? variable_list{grad} : variable_list{logits, targets, options.weight});
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("cross_entropy");
    const variable_list saved = context->get_saved_variables();
    if (context->saved_data["fused"].toBool())
      return {scaled(saved[0], gradients[0], saved[0].scalar_type()), {}, {}, {}};
    const CrossEntropyOptions options{.reduction = static_cast<Reduction>(context->saved_data["reduction"].toInt()),
                                      .ignore_index = context->saved_data["ignore_index"].toInt(),
                                      .label_smoothing = context->saved_data["label_smoothing"].toDouble(),
                                      .weight = saved[2]};
    return {dispatch::cross_entropy_backward(gradients[0], saved[0], saved[1], options), {}, {}, {}};
  }
};

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, const LinearCrossEntropyOptions& options, at::ScalarType dtype,
                            std::array<bool, 2> wants_grad) {
    const auto [loss, grad_hidden, grad_weight] =
        dispatch::linear_cross_entropy_forward(hidden, weight, targets, options, dtype, wants_grad);
    context->save_for_backward({grad_hidden, grad_weight});
    context->saved_data["hidden"] = hidden.scalar_type();
    context->saved_data["weight"] = weight.scalar_type();
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("linear_cross_entropy");
    const variable_list saved = context->get_saved_variables();
    variable_list result(6);
    if (context->needs_input_grad(0)) {
      result[0] = scaled(saved[0], gradients[0], context->saved_data["hidden"].toScalarType());
    }
    if (context->needs_input_grad(1)) {
      result[1] = scaled(saved[1], gradients[0], context->saved_data["weight"].toScalarType());
    }
    return result;
  }
};

}  // namespace

Reduction parse_reduction(std::string_view text, const char* op) {
  for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
    if (name(reduction) == text) return reduction;
  }
  TORCH_CHECK(false, op, ": expected reduction none, mean or sum, got '", text, "'");
}

std::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "none";
    case Reduction::kMean:
      return "mean";
    case Reduction::kSum:
      return "sum";
  }
  runtime::unexpected("cross_entropy: reduction", static_cast<int>(reduction));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options) {
  const bool records = at::GradMode::is_enabled() && requires_grad(logits);
  return CrossEntropyFunction::apply(logits, targets, options, records);
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options, at::ScalarType dtype) {
  TORCH_CHECK(options.reduction != Reduction::kNone, "linear_cross_entropy: expected reduction mean or sum, got none");
  const bool records = at::GradMode::is_enabled();
  return LinearCrossEntropyFunction::apply(
      hidden, weight, targets, options, dtype,
      std::array<bool, 2>{records && requires_grad(hidden), records && requires_grad(weight)});
}

}  // namespace plimsoll::ops
