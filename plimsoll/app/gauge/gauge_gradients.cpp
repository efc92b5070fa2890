#include "plimsoll/app/gauge/gauge_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstddef>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/gauge/calibration.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {
namespace {

// Gradients by the names of Freedoms::weights, which are parts of parameters, of the parameters that have one.
Gradients gradients_with_freedom(const models::LanguageModel& model, const std::vector<at::Tensor>& parameters) {
  Gradients result;
  for (const auto& [name, weight] : model.weights_with_freedom()) {
    for (const at::Tensor& parameter : parameters) {
      const auto* begin = static_cast<const std::byte*>(parameter.const_data_ptr());
      const auto distance = static_cast<const std::byte*>(weight.const_data_ptr()) - begin;
      const at::Tensor& gradient = parameter.grad();
      if (distance < 0 || distance >= static_cast<std::ptrdiff_t>(parameter.nbytes()) || !gradient.defined()) continue;
      const int64_t offset = distance / static_cast<std::ptrdiff_t>(parameter.element_size());
      result.emplace(name, gradient.contiguous().flatten().narrow(0, offset, weight.numel()).view(weight.sizes()));
    }
  }
  return result;
}

// A name without "weight" or "bias".
std::string layer_of(const std::string& name) { return name.substr(0, name.find_last_of("._") + 1); }

struct GradientPass {
  models::LanguageModel& model;
  const models::Exponents& exponents;  // that its weights are multiplied by
  const char* recipe;
  gauge::TrainingStep step;
};

Gradients gradients_of(const GradientPass& pass, const models::Freedoms& freedoms, const GaugeInputs& inputs) {
  {
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(pass.recipe)});
    for (const at::Tensor& window : inputs.windows) {
      inputs.check();
      gauge::backward(pass.model, window, pass.step);
    }
  }
  std::map<std::string, int> exponents;
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    exponents[tensor.name] = exponent_of(tensor, pass.exponents);
  }
  Gradients result;
  for (const auto& [name, gradient] : gradients_with_freedom(pass.model, pass.model.module().parameters())) {
    const auto found = exponents.find(name);  // none of the head that a tied one has become
    const int exponent = found == exponents.end() ? 0 : found->second;
    result.emplace(name, gradient.to(at::kFloat) * (std::ldexp(1.0, exponent) / pass.step.loss_scale));
  }
  return result;
}

}  // namespace

GradientError::GradientError(const models::LanguageModel& model, const GaugeInputs& inputs, int64_t tokens_a_step)
    : model_(model), freedoms_(model.freedoms()), inputs_(inputs), tokens_a_step_(tokens_a_step) {}

const Gradients& GradientError::expected(bool has_own_head) {
  const auto found = expected_.find(has_own_head);
  if (found != expected_.end()) return found->second;
  const models::Exponents exponents = {.residual = has_own_head ? 1 : 0,
                                       .pairs = std::vector<int>(freedoms_.pairs.size())};
  const auto model = model_.multiplied(exponents);
  return expected_[has_own_head] = gradients_of(
             {.model = *model, .exponents = exponents, .recipe = "fp32", .step = {.tokens = tokens_a_step_}}, freedoms_,
             inputs_);
}

double GradientError::operator()(const models::Exponents& exponents, double loss_scale) {
  const Gradients& want = expected(exponents.residual != 0);
  const auto model = model_.multiplied(exponents);
  const Gradients got = gradients_of({.model = *model,
                                      .exponents = exponents,
                                      .recipe = "fp16",
                                      .step = {.tokens = tokens_a_step_, .loss_scale = loss_scale}},
                                     freedoms_, inputs_);
  struct Squares {
    double error = 0, length = 0;
  };
  std::map<std::string, Squares> layers;
  for (const auto& [name, exact] : want) {
    Squares& squares = layers[layer_of(name)];
    squares.error += (got.at(name) - exact).to(at::kDouble).square().sum().item<double>();
    squares.length += exact.to(at::kDouble).square().sum().item<double>();
  }
  double sum = 0;
  int64_t count = 0;
  for (const auto& [name, squares] : layers) {
    if (squares.length == 0) continue;
    sum += squares.error / squares.length;
    ++count;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

}  // namespace plimsoll::app
