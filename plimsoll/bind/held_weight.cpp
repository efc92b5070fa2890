#include "plimsoll/bind/held_weight.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string_view>

#include "plimsoll/bind/recipe_text.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/linear/tensor_codes.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::bind {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;

constexpr OperandRecipe kOneScale{.format = format::Format::kE4m3, .source = recipe::ScaleSource::kCurrent};

OperandRecipe stored_weight(std::string_view recipe, GemmKind gemm) {
  const ops::SharedRecipe parsed = recipe_of(recipe);
  TORCH_CHECK_VALUE(!parsed->has_four_bits(), "held: expected a recipe of eight bits or more, got ", parsed->name());
  return parsed->stored_operand(Role::kWeight, gemm);
}

ops::ScaledTensor codes_of(const at::Tensor& codes, const OptionalTensor& scale, const OperandRecipe& stored) {
  TORCH_CHECK_VALUE(stored.source != recipe::ScaleSource::kNone,
                    "held: expected the recipe of a product that reads codes, got one in high precision");
  TORCH_CHECK(codes.scalar_type() == at::kByte && codes.dim() == 2 && codes.is_contiguous(),
              "held: expected a contiguous matrix of uint8 codes, got ", codes.sizes(), " of ", codes.scalar_type());
  const at::ScalarType dtype = stored.scale_format == format::Format::kE8m0 ? at::kByte : at::kFloat;
  const auto shape = ops::scale_shape(stored.granularity, codes.size(0), codes.size(1));
  TORCH_CHECK(scale && scale->scalar_type() == dtype && scale->numel() == shape[0] * shape[1] &&
                  scale->is_contiguous() && scale->device() == codes.device(),
              "held: expected a scale [", shape[0], ", ", shape[1], "] of ", dtype, ", contiguous, on ", codes.device(),
              " for the codes");
  return {.data = codes,
          .scale = scale->view(shape),
          .format = stored.format,
          .granularity = stored.granularity,
          .scale_format = stored.scale_format};
}

ops::ScaledTensor codes_of(const at::Tensor& codes, const OptionalTensor& scale, const OperandRecipe& stored,
                           const at::Tensor& weight) {
  TORCH_CHECK(codes.sizes() == weight.sizes() && codes.device() == weight.device(), "held: expected codes of uint8, ",
              weight.sizes(), " on ", weight.device(), ", got ", codes.sizes(), " of ", codes.scalar_type(), " on ",
              codes.device());
  return codes_of(codes, scale, stored);
}

ops::GivenCodes given_codes(const HeldWeight& held, const at::Tensor& weight) {
  const bool one_scale = held.recipe.empty();
  ops::GivenCodes given{.codes =
                            codes_of(*held.codes, held.scale,
                                     one_scale ? kOneScale : stored_weight(held.recipe, GemmKind::kOutput), weight)};
  if (held.grad_codes && !one_scale) {
    given.grad_input =
        codes_of(*held.grad_codes, held.grad_scale, stored_weight(held.recipe, GemmKind::kGradInput), weight);
  }
  if (held.amax) {
    TORCH_CHECK(held.amax->device() == weight.device(), "held: expected amax on ", weight.device(), ", got it on ",
                held.amax->device());
    given.amax = ops::AmaxSlot(*held.amax);
  }
  return given;
}

at::Tensor main_grad_of(const HeldWeight& held, const at::Tensor& weight) {
  const at::Tensor& main_grad = *held.main_grad;
  const at::ScalarType dtype = main_grad.scalar_type();
  const bool is_float = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  TORCH_CHECK(is_float && main_grad.sizes() == weight.sizes() && main_grad.is_contiguous() && main_grad.is_cpu(),
              "fuse_wgrad_accumulation: expected a main_grad of float32, bfloat16 or float16, contiguous, ",
              weight.sizes(), ", got ", main_grad.sizes(), " of ", dtype);
  return main_grad;
}

// Codes, scale and amax; where grad_input reads other codes, those and their scale.
std::vector<at::Tensor> quantize_weight(const at::Tensor& values, std::string_view recipe,
                                        const OptionalTensor& delayed_scale) {
  ops::check_values(values, "quantize_weight", "values");
  TORCH_CHECK(values.dim() == 2, "quantize_weight: expected a matrix, got ", values.sizes());
  const ops::GivenCodes made = ops::codes_of_weight(values, *recipe_of(recipe), delayed_scale.value_or(at::Tensor()));
  std::vector<at::Tensor> result{made.codes.data, made.codes.scale, made.amax.memory().view({1})};
  if (made.grad_input.data.defined()) result.insert(result.end(), {made.grad_input.data, made.grad_input.scale});
  return result;
}

at::Tensor dequantize_weight(const at::Tensor& codes, const at::Tensor& scale, std::string_view recipe,
                             at::ScalarType dtype) {
  return ops::dequantize(codes_of(codes, scale, stored_weight(recipe, GemmKind::kOutput)), dtype);
}

at::Tensor dequantize_weight_meta(const at::Tensor& codes, const at::Tensor& scale, std::string_view,
                                  at::ScalarType dtype) {
  TORCH_CHECK(codes.device() == scale.device(), "dequantize_weight: expected a scale on ", codes.device(),
              " as the codes, got it on ", scale.device());
  return ops::empty_meta(codes.sym_sizes(), codes, dtype);
}

}  // namespace

std::vector<HeldWeight> held_weights(const OptionalTensors& tensors, const std::vector<std::string>& recipes) {
  constexpr size_t kEach = 6;
  TORCH_CHECK_VALUE(tensors.size() % kEach == 0, "held: expected ", kEach, " tensors of each product, got ",
                    tensors.size());
  TORCH_CHECK_VALUE(recipes.empty() || recipes.size() * kEach == tensors.size(),
                    "held_recipes: expected one of each product, or none, got ", recipes.size());
  std::vector<HeldWeight> held;
  for (size_t i = 0; i < tensors.size(); i += kEach) {
    const auto next = [&](size_t which) -> OptionalTensor { return tensors.get(i + which); };
    held.push_back(
        {next(0), next(1), next(2), next(3), next(4), next(5), recipes.empty() ? std::string() : recipes[i / kEach]});
  }
  return held;
}

void hold(ops::LinearScaling& scaling, const HeldWeight& held, const at::Tensor& weight) {
  if (held.codes) scaling.given_weight = given_codes(held, weight);
  if (held.main_grad) scaling.main_grad = main_grad_of(held, weight);
}

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  // recipe: JSON. delayed_scale: the scale of the layer's slot, where the recipe has delayed scaling.
  library.def("quantize_weight(Tensor values, *, str recipe, Tensor? delayed_scale=None) -> Tensor[]",
              &quantize_weight);
  library.def("dequantize_weight(Tensor codes, Tensor scale, *, str recipe, ScalarType dtype) -> Tensor",
              {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) { library.impl("dequantize_weight", &dequantize_weight); }

TORCH_LIBRARY_IMPL(plimsoll, Meta, library) { library.impl("dequantize_weight", &dequantize_weight_meta); }

}  // namespace plimsoll::bind
