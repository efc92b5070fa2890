#include "plimsoll/ops/linear/linear_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "plimsoll/ops/linear/weight_source.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/random_seed.h"
#include "plimsoll/ops/watch/watched_product.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::ops {

using recipe::GemmKind;
using recipe::Role;

namespace {

// Saved operand as a product of the backward pass reads it: by its values in the high-precision format, where the
// product runs in that, and of held codes that are not such as the recipe makes: their scales vary along the sum, and
// folded in as FP32 they would have it multiplied in FP32.
ScaledTensor read_by(GemmKind gemm, Role role, const ScaledTensor& operand, const LinearSaved& saved) {
  const recipe::Recipe& recipe = *saved.scaling.recipe;
  const bool is_read = !recipe.high_precision(gemm) && has_form(operand, recipe.stored_operand(role, gemm));
  if (!operand.has_codes() || is_read) return operand;
  const format::Format wide = recipe.high_precision_format();
  return plain_values(dequantize(operand, dtype_of(wide)), wide);
}

// Facts for an audit about a product under the layer's recipe.
ProductFacts product_facts(const LinearScaling& scaling, GemmKind gemm) {
  const bool is_given = scaling.given_weight.defined();
  ProductFacts facts = {
      .recipe = scaling.recipe.get(),
      .holds_weight = !is_given && scaling.state != nullptr && scaling.state->weight_source.held() != nullptr};
  if (scaling.precision != nullptr && scaling.state != nullptr && watch::auditing() != nullptr) {
    facts.controller = scaling.precision->reason_for(scaling.state->name, scaling.state->grad_output, gemm);
  }
  return facts;
}

// Tells the controller of formats about a product of a training step.
void count_product(const LinearScaling& scaling, const Product& product) {
  PrecisionController* const told = scaling.told();
  if (told == nullptr) return;
  const int64_t cols = product.kind == GemmKind::kOutput ? product.b.rows() : product.b.cols();
  told->count(scaling.state->grad_output, product.kind,
              static_cast<double>(product.a.rows() * product.a.cols()) * static_cast<double>(cols));
}

// Format of the codes whose values a product reads instead of them; empty: it reads them as they are.
std::string_view codes_behind(const ScaledTensor& read, const ScaledTensor& saved) {
  return saved.has_codes() && !read.has_codes() ? format::info(saved.format).name : std::string_view();
}

}  // namespace

void LinearSaved::exchange(SavedTensors& tensors) {
  tensors.exchange(input);
  tensors.exchange(weight);
}

LinearCall linear_call(const LinearScaling& scaling, bool needs_input, const at::Tensor& weight,
                       const at::Tensor& bias) {
  LinearCall call{.scaling = scaling, .record = at::GradMode::is_enabled()};
  call.scaling.device = weight.device();
  if (call.record) {
    call.needs = {.input = needs_input, .weight = requires_grad(weight), .bias = requires_grad(bias)};
  }
  if (call.scaling.recipe == nullptr) {
    const format::Format format = format_of(weight.scalar_type(), "linear");
    call.scaling.recipe = std::make_shared<const recipe::Recipe>(recipe::HighPrecision{.format = format});
  }
  const recipe::Recipe& recipe = *call.scaling.recipe;
  TORCH_CHECK(scaling.parallel.mode == ParallelMode::kNone || !recipe.has_four_bits(),
              "linear: expected a recipe of eight bits or more for a layer that the ranks of tp_group share, got ",
              recipe.name());
  TORCH_CHECK_NOT_IMPLEMENTED(weight.device().is_cpu() || !(recipe.has_four_bits() || scaling.precision != nullptr),
                              "linear: expected codes of eight bits or none, and no automatic formats, on ",
                              weight.device(), ", got recipe ", recipe.name());
  const bool draws = (call.record || scaling.runs_again) && recipe.is_random();
  if (draws && !scaling.seed) call.scaling.seed = static_cast<uint64_t>(draw_seed());
  return call;
}

void linear_output(const LinearForward& forward, const LinearOutput& output, LinearSaved& saved) {
  const LinearCall& call = forward.call;
  const WeightOperands weights = weight_operands(forward.weight, call.scaling, forward.maker,
                                                 {.grad_input = call.needs.input, .training = call.record});
  const at::Tensor bias = as_fp32(forward.bias);
  saved.scaling = call.scaling;
  saved.needs = call.needs;
  saved.weight_dtype = forward.weight.scalar_type();
  if (bias.defined()) saved.bias_dtype = forward.bias.scalar_type();
  if (call.needs.input) saved.weight = weights.operands.grad_input;
  Product product{.kind = GemmKind::kOutput,
                  .a = forward.input,
                  .b = weights.operands.output,
                  .epilogue = output.epilogue,
                  .scale = output.scale,
                  .amax = output.amax,
                  .packed = &weights.packed};
  product.epilogue.bias = data_or_null(bias);
  if (bias.defined() && bias.is_cuda() && forward.bias.scalar_type() != at::kFloat)
    product.narrow_bias = forward.bias.detach();
  ProductFacts facts = product_facts(call.scaling, GemmKind::kOutput);
  if (call.record) count_product(call.scaling, product);
  if (call.scaling.given_weight.defined()) facts.b_codes = codes_behind(product.b, call.scaling.given_weight.codes);
  multiply({product, forward.maker.path(), "output", facts}, output.tensor, output.format);
}

void input_gradient(const ScaledTensor& grad, const LinearSaved& saved, const OperandMaker& maker,
                    const LinearOutput& output) {
  const ScaledTensor weight = read_by(GemmKind::kGradInput, Role::kWeight, saved.weight, saved);
  const Product product{.kind = GemmKind::kGradInput,
                        .a = grad,
                        .b = weight,
                        .epilogue = output.epilogue,
                        .scale = output.scale,
                        .amax = output.amax};
  ProductFacts facts = product_facts(saved.scaling, GemmKind::kGradInput);
  facts.b_codes = codes_behind(weight, saved.weight);
  count_product(saved.scaling, product);
  multiply({product, maker.path(), "grad_input", facts}, output.tensor, output.format);
}

at::Tensor weight_gradient(const ScaledTensor& grad, const ScaledTensor& saved_input, const LinearSaved& saved,
                           const OperandMaker& maker) {
  const ScaledTensor input = read_by(GemmKind::kGradWeight, Role::kInput, saved_input, saved);
  ProductFacts facts = product_facts(saved.scaling, GemmKind::kGradWeight);
  facts.b_codes = codes_behind(input, saved_input);
  count_product(saved.scaling, {.kind = GemmKind::kGradWeight, .a = grad, .b = input});
  const at::Tensor& main_grad = saved.scaling.main_grad;
  if (main_grad.defined()) {
    const bool accumulates = !saved.scaling.is_first_microbatch.value_or(false);
    const Product product{
        .kind = GemmKind::kGradWeight, .a = grad, .b = input, .epilogue = {.accumulate = accumulates}};
    multiply({product, maker.path(), "main_grad", facts}, main_grad);
    return {};
  }
  at::Tensor gradient = at::empty({grad.cols(), input.cols()}, grad.data.options().dtype(saved.weight_dtype));
  const Product product{.kind = GemmKind::kGradWeight, .a = grad, .b = input};
  multiply({product, maker.path(), "grad_weight", facts}, gradient);
  return gradient;
}

}  // namespace plimsoll::ops
