#include "plimsoll/ops/loss/cross_entropy_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "plimsoll/kernels/cross_entropy/cross_entropy.h"
#include "plimsoll/kernels/cross_entropy/cross_entropy_cuda.h"
#include "plimsoll/ops/loss/cross_entropy.h"
#include "plimsoll/ops/loss/loss_reduction.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;

// Arguments that all rows share.
struct Terms {
  const char* op;
  at::Tensor targets;       // dense
  at::Tensor class_weight;  // fp32, or undefined
  int64_t vocabulary;
  int64_t ignore_index;
  float label_smoothing;
  Reduction reduction;
  double total_weight = 0;        // of the targets; on the CPU
  at::Tensor device_weight = {};  // the same on a device, with kMean

  bool is_on_cpu() const { return targets.device().is_cpu(); }
};

// Factors of the gradient: one, which the host knows, and those of the rows, fp32 [rows] or undefined.
struct GradFactors {
  float all = 1.0f;
  at::Tensor rows = {};
};

// A scalar on the device for each row.
at::Tensor for_each_row(const Terms& terms, const at::Tensor& factor) {
  return factor.reshape({1}).expand({terms.targets.numel()}).contiguous();
}

GradFactors factors_of_mean(const Terms& terms) {
  if (terms.reduction != Reduction::kMean) return {};
  if (terms.is_on_cpu()) return {.all = static_cast<float>(1 / terms.total_weight)};
  return {.rows = for_each_row(terms, factor_of_mean(terms.device_weight))};
}

// Factors of a backward pass. gradient: of the loss, fp32, one for each row with kNone, else one.
GradFactors factors_of_gradient(const Terms& terms, const at::Tensor& gradient) {
  if (terms.reduction == Reduction::kNone) return {.rows = gradient};
  const bool is_mean = terms.reduction == Reduction::kMean;
  if (terms.is_on_cpu()) return {.all = factors_of_mean(terms).all * gradient.item<float>()};
  return {.rows = for_each_row(terms, is_mean ? gradient.reshape({}) * factor_of_mean(terms.device_weight) : gradient)};
}

void check_targets(Terms& terms) {
  const int64_t* targets = terms.targets.const_data_ptr<int64_t>();
  const float* weight = data_or_null(terms.class_weight);
  for (int64_t i = 0; i < terms.targets.numel(); ++i) {
    const int64_t target = targets[i];
    if (target == terms.ignore_index) continue;
    TORCH_CHECK(target >= 0 && target < terms.vocabulary, terms.op, ": expected targets from 0 to ",
                terms.vocabulary - 1, " or ", terms.ignore_index, ", got ", target);
    terms.total_weight += weight ? static_cast<double>(weight[target]) : 1.0;
  }
}

struct TermsInput {
  const char* op;
  const at::Tensor& x;  // logits or hidden: [..., n]
  const at::Tensor& targets;
  int64_t vocabulary;
  at::Tensor class_weight;
  std::string_view reduction;
  int64_t ignore_index;
  double label_smoothing;
};

Terms checked_terms(const TermsInput& input) {
  const char* op = input.op;
  TORCH_CHECK(
      input.targets.scalar_type() == at::kLong && input.targets.sizes() == input.x.sizes().slice(0, input.x.dim() - 1),
      op, ": expected targets int64 ", input.x.sizes().slice(0, input.x.dim() - 1), ", got ",
      input.targets.scalar_type(), " ", input.targets.sizes());
  check_same_device(input.x, input.targets, op, "targets");
  TORCH_CHECK(input.vocabulary > 0, op, ": expected one class or more, got none");
  TORCH_CHECK(input.label_smoothing >= 0 && input.label_smoothing <= 1, op,
              ": expected label smoothing from 0 to 1, got ", input.label_smoothing);
  if (const at::Tensor& weight = input.class_weight; weight.defined()) {
    check_same_device(input.x, weight, op, "class weights");
    TORCH_CHECK(weight.dim() == 1 && weight.size(0) == input.vocabulary, op, ": expected class weights [",
                input.vocabulary, "], got ", weight.sizes());
    TORCH_CHECK(input.label_smoothing == 0, op, ": expected no label smoothing beside class weights, got ",
                input.label_smoothing);
  }
  Terms terms{.op = op,
              .targets = input.targets.contiguous(),
              .class_weight = as_fp32(input.class_weight),
              .vocabulary = input.vocabulary,
              .ignore_index = input.ignore_index,
              .label_smoothing = static_cast<float>(input.label_smoothing),
              .reduction = parse_reduction(input.reduction, op)};
  if (terms.is_on_cpu()) {
    check_targets(terms);
  } else if (terms.reduction == Reduction::kMean) {
    terms.device_weight = weight_of_targets(terms.targets, terms.ignore_index, terms.class_weight);
  }
  return terms;
}

struct Rows {
  at::Tensor logits;         // [rows, vocabulary]
  at::Tensor grad;           // the same, or undefined
  at::Tensor loss;           // fp32 [rows]
  int64_t first = 0;         // the row's place among the targets
  GradFactors factors = {};  // of all targets
};

void run(const Terms& terms, const Rows& rows) {
  const watch::Span span("cross_entropy", {.bytes = traffic(rows.logits, rows.grad)});
  watch::audit_operator({.op = "cross_entropy",
                         .input = format_of(rows.logits.scalar_type(), terms.op),
                         .output = format::Format::kFp32});
  const float* row_factor = data_or_null(rows.factors.rows);
  const kernels::CrossEntropy args{.rows = rows.logits.size(0),
                                   .vocabulary = terms.vocabulary,
                                   .logits = rows.logits.const_data_ptr(),
                                   .logits_stride = terms.vocabulary,
                                   .format = format_of(rows.logits.scalar_type(), terms.op),
                                   .targets = terms.targets.const_data_ptr<int64_t>() + rows.first,
                                   .ignore_index = terms.ignore_index,
                                   .label_smoothing = terms.label_smoothing,
                                   .class_weight = data_or_null(terms.class_weight),
                                   .loss = rows.loss.mutable_data_ptr<float>() + rows.first,
                                   .grad = rows.grad.defined() ? rows.grad.mutable_data_ptr() : nullptr,
                                   .grad_stride = terms.vocabulary,
                                   .grad_factor = rows.factors.all,
                                   .row_factor = row_factor != nullptr ? row_factor + rows.first : nullptr};
  on_device_of(rows.logits, [&](auto... stream) { kernels::cross_entropy(args, stream...); });
}

at::Tensor empty_losses(const Terms& terms) {
  return at::empty(terms.targets.sizes(), terms.targets.options().dtype(at::kFloat));
}

// In double and in order, so that the bits do not depend on the number of threads.
at::Tensor reduced(const Terms& terms, const at::Tensor& losses) {
  if (terms.reduction == Reduction::kNone) return losses;
  if (!terms.is_on_cpu()) return reduced_losses(losses, terms.reduction, terms.device_weight);
  double total = 0;
  for (int64_t i = 0; i < losses.numel(); ++i) total += static_cast<double>(losses.const_data_ptr<float>()[i]);
  if (terms.reduction == Reduction::kMean) total /= terms.total_weight;
  return at::scalar_tensor(total, at::kFloat);
}

Terms logits_terms(const at::Tensor& logits, const at::Tensor& targets, const std::optional<at::Tensor>& weight,
                   std::string_view reduction, int64_t ignore_index, double label_smoothing) {
  check_device_values(logits, "cross_entropy", "logits");
  TORCH_CHECK(logits.dim() >= 1, "cross_entropy: expected logits of one dimension or more, got a scalar");
  return checked_terms({.op = "cross_entropy",
                        .x = logits,
                        .targets = targets,
                        .vocabulary = logits.size(-1),
                        .class_weight = weight.value_or(at::Tensor()),
                        .reduction = reduction,
                        .ignore_index = ignore_index,
                        .label_smoothing = label_smoothing});
}

// The rows whose targets count, int64 [rows]. Undefined where all do, and on a device, whose targets the host does not read.
at::Tensor rows_that_count(const Terms& terms) {
  if (!terms.is_on_cpu()) return {};
  const int64_t* targets = terms.targets.const_data_ptr<int64_t>();
  const int64_t all = terms.targets.numel();
  const int64_t ignored = std::count(targets, targets + all, terms.ignore_index);
  if (ignored == 0) return {};
  at::Tensor result = at::empty({all - ignored}, terms.targets.options());
  int64_t* next = result.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < all; ++row) {
    if (targets[row] != terms.ignore_index) *next++ = row;
  }
  return result;
}

struct LinearRows {
  ScaledTensor hidden, weight;  // nothing is packed for all chunks: that would be a copy of a large weight
  GradFactors factors = {};
  at::Tensor grad_hidden = {}, grad_weight = {};  // or undefined
};

// The loss of rows first .. first + logits.size(0) - 1, and what they add to the gradients.
void run_chunk(const Terms& terms, const LinearRows& head, const at::Tensor& logits, const at::Tensor& losses,
               int64_t first) {
  const int64_t rows = logits.size(0);
  const auto slice = [&](const at::Tensor& x) { return x.narrow(0, first, rows); };
  const format::Format format = format_of(logits.scalar_type(), terms.op);
  const ScaledTensor hidden = plain_values(slice(head.hidden.data), head.hidden.format);
  multiply({.kind = GemmKind::kOutput, .a = hidden, .b = head.weight}, logits);
  const bool wants_grad = head.grad_hidden.defined() || head.grad_weight.defined();
  run(terms, {.logits = logits,
              .grad = wants_grad ? logits : at::Tensor(),
              .loss = losses,
              .first = first,
              .factors = head.factors});
  const ScaledTensor grad = plain_values(logits, format);
  if (head.grad_hidden.defined()) {
    multiply({.kind = GemmKind::kGradInput, .a = grad, .b = head.weight}, slice(head.grad_hidden));
  }
  if (head.grad_weight.defined()) {
    multiply({.kind = GemmKind::kGradWeight, .a = grad, .b = hidden, .epilogue = {.accumulate = first > 0}},
             head.grad_weight);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward_pass(const at::Tensor& logits, const at::Tensor& targets,
                                                              const std::optional<at::Tensor>& weight,
                                                              std::string_view reduction, int64_t ignore_index,
                                                              double label_smoothing, bool wants_grad) {
  const Terms terms = logits_terms(logits, targets, weight, reduction, ignore_index, label_smoothing);
  const at::Tensor losses = empty_losses(terms);
  const at::Tensor grad = at::empty(wants_grad ? logits.sizes() : at::IntArrayRef{0}, logits.options());
  run(terms, {.logits = as_matrix(logits, terms.op),
              .grad = wants_grad ? grad : at::Tensor(),
              .loss = losses,
              .factors = factors_of_mean(terms)});
  return {reduced(terms, losses), grad};
}

at::Tensor cross_entropy_backward_pass(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& targets,
                                       const std::optional<at::Tensor>& weight, std::string_view reduction,
                                       int64_t ignore_index, double label_smoothing) {
  const Terms terms = logits_terms(logits, targets, weight, reduction, ignore_index, label_smoothing);
  TORCH_CHECK(grad.numel() == (terms.reduction == Reduction::kNone ? targets.numel() : 1),
              "cross_entropy: expected a gradient of the loss, got ", grad.sizes());
  check_same_device(logits, grad, "cross_entropy", "the gradient");
  const at::Tensor result = at::empty(logits.sizes(), logits.options());
  run(terms, {.logits = as_matrix(logits, terms.op),
              .grad = result,
              .loss = empty_losses(terms),
              .factors = factors_of_gradient(terms, as_fp32(grad))});
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_pass(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, std::string_view reduction,
    int64_t ignore_index, double label_smoothing, at::ScalarType dtype, std::array<bool, 2> wants_grad) {
  constexpr const char* kOp = "linear_cross_entropy";
  check_device_values(hidden, kOp, "hidden");
  TORCH_CHECK(hidden.dim() >= 1, kOp, ": expected hidden of one dimension or more, got a scalar");
  check_linear({.op = kOp, .layer = ""}, hidden, hidden.size(-1), weight, at::Tensor());
  const Terms terms = checked_terms({.op = kOp,
                                     .x = hidden,
                                     .targets = targets,
                                     .vocabulary = weight.size(0),
                                     .class_weight = {},
                                     .reduction = reduction,
                                     .ignore_index = ignore_index,
                                     .label_smoothing = label_smoothing});
  if (const at::Tensor counting = rows_that_count(terms); counting.defined()) {
    auto [loss, grad_hidden, grad_weight] = linear_cross_entropy_forward_pass(
        as_matrix(hidden, kOp).index_select(0, counting), weight, terms.targets.flatten().index_select(0, counting),
        reduction, ignore_index, label_smoothing, dtype, wants_grad);
    if (wants_grad[0]) {
      const at::Tensor all = at::zeros({terms.targets.numel(), hidden.size(-1)}, grad_hidden.options());
      grad_hidden = all.index_copy_(0, counting, grad_hidden).view(hidden.sizes());
    }
    return {loss, grad_hidden, grad_weight};
  }
  const format::Format format = format_of(dtype, kOp);
  const at::ScalarType logits_dtype = cross_entropy_logits_dtype(dtype);
  const at::Tensor matrix = as_matrix(hidden, kOp).to(dtype);
  const int64_t rows = matrix.size(0), vocabulary = terms.vocabulary;
  const at::TensorOptions options = hidden.options().dtype(logits_dtype);
  LinearRows head{.hidden = plain_values(matrix, format),
                  .weight = plain_values(weight.to(dtype).contiguous(), format),
                  .factors = factors_of_mean(terms)};
  if (wants_grad[0]) head.grad_hidden = at::empty(matrix.sizes(), options);
  if (wants_grad[1]) head.grad_weight = at::empty(weight.sizes(), options.dtype(at::kFloat));
  if (wants_grad[1] && rows == 0) head.grad_weight.zero_();

  const at::Tensor losses = empty_losses(terms);
  const int64_t chunk = cross_entropy_chunk_rows(rows, vocabulary, static_cast<int64_t>(elementSize(logits_dtype)),
                                                 terms.is_on_cpu() ? kHeldLogits : kHeldLogitsOnDevice);
  const at::Tensor logits = at::empty({chunk, vocabulary}, options);
  for (int64_t first = 0; first < rows; first += chunk) {
    run_chunk(terms, head, logits.narrow(0, 0, std::min(chunk, rows - first)), losses, first);
  }
  const at::Tensor none = at::empty({0}, options);
  return {reduced(terms, losses), wants_grad[0] ? head.grad_hidden.view(hidden.sizes()) : none,
          wants_grad[1] ? head.grad_weight : none.to(at::kFloat)};
}

int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary, int64_t bytes_per_logit, int64_t most_bytes) {
  const int64_t most = std::max<int64_t>(most_bytes / (vocabulary * bytes_per_logit), 1);
  const int64_t chunks = std::max<int64_t>((rows + most - 1) / most, 1);
  return (rows + chunks - 1) / chunks;
}

}  // namespace plimsoll::ops
