#include "plimsoll/ops/loss/cross_entropy_op.h"

#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/loss/cross_entropy_pass.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

at::Tensor gradient_of(const at::Tensor& tensor, bool wanted, at::ScalarType dtype) {
  return wanted ? empty_meta(tensor.sym_sizes(), tensor, dtype) : empty_meta({0}, tensor, dtype);
}

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward_meta(const at::Tensor& logits, const at::Tensor& targets,
                                                              const std::optional<at::Tensor>& weight,
                                                              std::string_view reduction, int64_t, double,
                                                              bool wants_grad) {
  check_one_device("cross_entropy", {logits, targets, weight});
  const at::Tensor loss =
      reduction == "none" ? empty_meta(targets.sym_sizes(), logits, at::kFloat) : empty_meta({}, logits, at::kFloat);
  return {loss, gradient_of(logits, wants_grad, logits.scalar_type())};
}

at::Tensor cross_entropy_backward_meta(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& targets,
                                       const std::optional<at::Tensor>& weight, std::string_view, int64_t, double) {
  check_one_device("cross_entropy", {logits, grad, targets, weight});
  return gradient_of(logits, true, logits.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_meta(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, std::string_view reduction, int64_t,
    double, at::ScalarType dtype, std::array<bool, 2> wants_grad) {
  check_one_device("linear_cross_entropy", {hidden, weight, targets});
  const at::ScalarType logits_dtype = cross_entropy_logits_dtype(dtype);
  const at::Tensor loss =
      reduction == "none" ? empty_meta(targets.sym_sizes(), hidden, at::kFloat) : empty_meta({}, hidden, at::kFloat);
  return {loss, gradient_of(hidden, wants_grad[0], logits_dtype), gradient_of(weight, wants_grad[1], at::kFloat)};
}

at::Tensor cross_entropy_op(const at::Tensor& logits, const at::Tensor& targets,
                            const std::optional<at::Tensor>& weight, std::string_view reduction, int64_t ignore_index,
                            double label_smoothing) {
  return cross_entropy(logits, targets,
                       {.reduction = parse_reduction(reduction, "cross_entropy"),
                        .ignore_index = ignore_index,
                        .label_smoothing = label_smoothing,
                        .weight = weight.value_or(at::Tensor())});
}

at::Tensor linear_cross_entropy_op(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                   std::string_view reduction, int64_t ignore_index, double label_smoothing,
                                   std::optional<at::ScalarType> dtype) {
  return linear_cross_entropy(hidden, weight, targets,
                              {.reduction = parse_reduction(reduction, "linear_cross_entropy"),
                               .ignore_index = ignore_index,
                               .label_smoothing = label_smoothing},
                              dtype.value_or(weight.scalar_type()));
}

}  // namespace

void define_loss(torch::Library& library) {
  // The classes are the last dimension of the logits.
  library.def(
      "cross_entropy_forward(Tensor logits, Tensor targets, Tensor? weight, *, str reduction, int ignore_index, "
      "float label_smoothing, bool wants_grad) -> (Tensor loss, Tensor grad)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "cross_entropy_backward(Tensor grad, Tensor logits, Tensor targets, Tensor? weight, *, str reduction, "
      "int ignore_index, float label_smoothing) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "linear_cross_entropy_forward(Tensor hidden, Tensor weight, Tensor targets, *, str reduction, int ignore_index, "
      "float label_smoothing, ScalarType dtype, bool[2] wants_grad) -> (Tensor loss, Tensor grad_hidden, "
      "Tensor grad_weight)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "cross_entropy(Tensor logits, Tensor targets, Tensor? weight=None, *, str reduction='mean', "
      "int ignore_index=-100, float label_smoothing=0.0) -> Tensor",
      &cross_entropy_op);
  library.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, *, str reduction='mean', "
      "int ignore_index=-100, float label_smoothing=0.0, ScalarType? dtype=None) -> Tensor",
      &linear_cross_entropy_op);
}

void register_loss(torch::Library& library) {
  library.impl("cross_entropy_forward", &cross_entropy_forward_pass);
  library.impl("cross_entropy_backward", &cross_entropy_backward_pass);
  library.impl("linear_cross_entropy_forward", &linear_cross_entropy_forward_pass);
}

void register_loss_meta(torch::Library& library) {
  library.impl("cross_entropy_forward", &cross_entropy_forward_meta);
  library.impl("cross_entropy_backward", &cross_entropy_backward_meta);
  library.impl("linear_cross_entropy_forward", &linear_cross_entropy_forward_meta);
}

namespace dispatch {

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits, const at::Tensor& targets,
                                                         const CrossEntropyOptions& options, bool wants_grad) {
  static const auto op = find_operator<decltype(cross_entropy_forward_pass)>("plimsoll::cross_entropy_forward");
  return op.call(logits, targets, optional(options.weight), name(options.reduction), options.ignore_index,
                 options.label_smoothing, wants_grad);
}

at::Tensor cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyOptions& options) {
  static const auto op = find_operator<decltype(cross_entropy_backward_pass)>("plimsoll::cross_entropy_backward");
  return op.call(grad, logits, targets, optional(options.weight), name(options.reduction), options.ignore_index,
                 options.label_smoothing);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const LinearCrossEntropyOptions& options, at::ScalarType dtype, std::array<bool, 2> wants_grad) {
  static const auto op =
      find_operator<decltype(linear_cross_entropy_forward_pass)>("plimsoll::linear_cross_entropy_forward");
  return op.call(hidden, weight, targets, name(options.reduction), options.ignore_index, options.label_smoothing, dtype,
                 wants_grad);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
