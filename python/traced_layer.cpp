#include "python/traced_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/find_operator.h"
#include "plimsoll/ops/linear_pass.h"
#include "plimsoll/ops/meta.h"
#include "plimsoll/ops/saved.h"
#include "python/layer_state.h"
#include "python/recipe_text.h"

namespace plimsoll::python {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the operators take beside tensors. needs: a bit for each LayerInput whose gradient will be asked for; record:
// amaxes count.
#define PLIMSOLL_CALL_SCHEMA                                                                                       \
  "str recipe, bool? is_first_microbatch, bool save_input, str normalization, bool zero_centered, float epsilon, " \
  "str activation, int needs"

OptionalTensors listed(const LayerInputs& inputs) {
  OptionalTensors list;
  for (const OptionalTensor& input : inputs) list.push_back(input);
  return list;
}

bool needs_bit(int64_t needs, size_t input) { return ((needs >> input) & 1) != 0; }

// Outside the graph that the tensors belong to.
LayerInputs leaves(const OptionalTensors& tensors, int64_t needs) {
  TORCH_CHECK_VALUE(tensors.size() == kLayerInputs, "inputs: expected ", size_t{kLayerInputs}, ", got ",
                    tensors.size());
  LayerInputs inputs;
  for (size_t i = 0; i < kLayerInputs; ++i) {
    const OptionalTensor tensor = tensors.get(i);
    if (tensor) inputs[i] = tensor->detach().requires_grad_(needs_bit(needs, i));
  }
  return inputs;
}

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ForwardResult layer_forward_cpu(const OptionalTensors& tensors, at::TensorList state, std::string_view recipe,
                                std::optional<bool> is_first_microbatch, bool save_input, std::string_view norm,
                                bool zero_centered, double epsilon, std::string_view activation, int64_t needs,
                                bool record) {
  const LayerCall call{std::string(recipe),    is_first_microbatch, save_input,
                       std::string(norm),      zero_centered,       epsilon,
                       std::string(activation)};
  const LayerScaling scaling = layer_scaling(call, layer_states(state));
  const at::Tensor scales = at::empty({static_cast<int64_t>(2 * scaling.size())}, at::kFloat);
  float* scale = scales.mutable_data_ptr<float>();
  for (const ops::LinearScaling& product : scaling) {
    *scale++ = ops::current_scale(product.state->input);
    *scale++ = ops::current_scale(product.state->weight);
  }
  const at::AutoGradMode grad_mode(record);
  const ops::NormOutput result = run_layer(leaves(tensors, needs), call, scaling);
  const at::Tensor sum = result.sum.defined() ? result.sum.detach() : at::empty({0}, result.output.options());
  return {result.output.detach(), sum, scales};
}

ForwardResult layer_forward_meta(const OptionalTensors& tensors, at::TensorList state, std::string_view recipe,
                                 std::optional<bool>, bool, std::string_view, bool, double, std::string_view, int64_t,
                                 bool) {
  TORCH_CHECK_VALUE(tensors.size() == kLayerInputs && tensors.get(kX) && tensors.get(kWeight), "inputs: expected ",
                    size_t{kLayerInputs}, " with x and weight, got ", tensors.size());
  const at::Tensor x = *tensors.get(kX);
  const OptionalTensor residual = tensors.get(kResidual), fc2_weight = tensors.get(kFc2Weight);
  const at::Tensor weight = *tensors.get(kWeight), last_weight = fc2_weight ? *fc2_weight : weight;
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && last_weight.dim() == 2 && x.sym_size(-1) == weight.sym_size(1),
              "layer: expected x [..., in] and weight [out, in], got ", x.sym_sizes(), " and ", weight.sym_sizes());
  const at::ScalarType dtype = ops::dtype_of(recipe_of(recipe)->high_precision_format());
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  sizes.back() = last_weight.sym_size(0);
  const auto scales = static_cast<int64_t>(2 * state.size() / kStateTensors);
  return {ops::empty_meta(sizes, x, dtype),
          residual ? ops::empty_meta(x.sym_sizes(), x, x.scalar_type()) : ops::empty_meta({0}, x, dtype),
          ops::empty_meta({scales}, x, at::kFloat)};
}

// The gradients that `needs` names, in order. keys: one a product; the state is theirs, so that no buffer that changes
// between the passes is an argument.
std::vector<at::Tensor> layer_backward_cpu(const OptionalTensor& grad, const OptionalTensor& grad_sum,
                                           const OptionalTensors& tensors, at::TensorList keys,
                                           const at::Tensor& scales, std::string_view recipe,
                                           std::optional<bool> /*is_first_microbatch*/, bool save_input,
                                           std::string_view norm, bool zero_centered, double epsilon,
                                           std::string_view activation, int64_t needs) {
  const LayerCall call{std::string(recipe),    std::nullopt, save_input, std::string(norm), zero_centered, epsilon,
                       std::string(activation)};
  TORCH_CHECK_VALUE(scales.numel() == static_cast<int64_t>(2 * keys.size()) && scales.scalar_type() == at::kFloat,
                    "scales: expected ", 2 * keys.size(), " of float32, got ", scales.sizes(), " of ",
                    scales.scalar_type());
  LayerStates states;
  for (const at::Tensor& key : keys) {
    const auto first = static_cast<int64_t>(2 * states.size());
    states.push_back(
        pinned_state(*kept_state(key), scales.flatten().narrow(0, first, 1), scales.flatten().narrow(0, first + 1, 1)));
  }
  LayerScaling scaling = layer_scaling(call, states);
  for (ops::LinearScaling& product : scaling) product.step = std::make_shared<ops::ScalingStep>(product.recipe);
  const LayerInputs inputs = leaves(tensors, needs);
  ops::NormOutput result;
  {
    const at::AutoGradMode grad_mode(true);
    result = run_layer(inputs, call, scaling);
  }
  const at::AutoGradMode grad_mode(false);
  variable_list gradients;
  if (const auto node = result.output.grad_fn()) {
    // Not through the engine: the gradient's amax belongs to the backward pass that is under way.
    variable_list seeds{grad.value_or(at::Tensor())};
    if (result.sum.defined()) seeds.push_back(grad_sum.value_or(at::Tensor()));
    gradients = (*node)(std::move(seeds));
  }
  std::vector<at::Tensor> wanted;
  size_t next = 0;
  for (size_t i = 0; i < kLayerInputs; ++i) {
    if (!inputs[i]) continue;
    const at::Tensor gradient = next < gradients.size() ? gradients[next++] : at::Tensor();
    if (needs_bit(needs, i)) wanted.push_back(gradient.defined() ? gradient : at::zeros_like(*inputs[i]));
  }
  return wanted;
}

std::vector<at::Tensor> layer_backward_meta(const OptionalTensor&, const OptionalTensor&,
                                            const OptionalTensors& tensors, at::TensorList, const at::Tensor&,
                                            std::string_view, std::optional<bool>, bool, std::string_view, bool, double,
                                            std::string_view, int64_t needs) {
  std::vector<at::Tensor> wanted;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const OptionalTensor tensor = tensors.get(i);
    if (tensor && needs_bit(needs, i)) {
      wanted.push_back(at::empty_symint(tensor->sym_sizes(), tensor->options()));
    }
  }
  return wanted;
}

struct TracedLayer {
  LayerCall call;
  int64_t needs = 0;
  std::vector<at::Tensor> inputs = {};  // undefined where absent
  std::vector<at::Tensor> keys = {};
  at::Tensor scales = {};

  void exchange(ops::SavedTensors& tensors) {
    for (at::Tensor& input : inputs) tensors.exchange(input);
    for (at::Tensor& key : keys) tensors.exchange(key);
    tensors.exchange(scales);
  }
};

class TracedLayerFunction : public torch::autograd::Function<TracedLayerFunction> {
 public:
  // Returns {output} or, with a residual, {output, sum}.
  static variable_list forward(AutogradContext* context, const OptionalTensor& x, const OptionalTensor& residual,
                               const OptionalTensor& norm_weight, const OptionalTensor& norm_bias,
                               const OptionalTensor& weight, const OptionalTensor& bias,
                               const OptionalTensor& fc2_weight, const OptionalTensor& fc2_bias, TracedLayer layer,
                               at::TensorList state, bool record) {
    const LayerInputs inputs{x, residual, norm_weight, norm_bias, weight, bias, fc2_weight, fc2_bias};
    static const auto op = ops::find_operator<decltype(layer_forward_cpu)>("plimsoll::layer_forward");
    const LayerCall& call = layer.call;
    auto [output, sum, scales] =
        op.call(listed(inputs), state, call.recipe, call.is_first_microbatch, call.save_input, call.normalization,
                call.zero_centered, call.epsilon, call.activation, layer.needs, record);
    for (const OptionalTensor& input : inputs) layer.inputs.push_back(input.value_or(at::Tensor()));
    layer.scales = scales;
    ops::save(context, std::move(layer));
    variable_list outputs{output};
    if (residual) outputs.push_back(sum);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    ops::check_once_differentiable("layer");
    const TracedLayer layer = ops::load<TracedLayer>(context);
    LayerInputs inputs;
    for (size_t i = 0; i < kLayerInputs; ++i) inputs[i] = ops::optional(layer.inputs[i]);
    static const auto op = ops::find_operator<decltype(layer_backward_cpu)>("plimsoll::layer_backward");
    const LayerCall& call = layer.call;
    const std::vector<at::Tensor> wanted =
        op.call(ops::optional(gradients[0]), gradients.size() == 2 ? ops::optional(gradients[1]) : std::nullopt,
                listed(inputs), layer.keys, layer.scales, call.recipe, call.is_first_microbatch, call.save_input,
                call.normalization, call.zero_centered, call.epsilon, call.activation, layer.needs);
    variable_list result(kLayerInputs + 2 + layer.keys.size() * kStateTensors);  // those of the rest stay undefined
    size_t next = 0;
    for (size_t i = 0; i < kLayerInputs; ++i) {
      if (needs_bit(layer.needs, i)) result[i] = wanted[next++];
    }
    return result;
  }
};

}  // namespace

bool is_traced(const at::Tensor& x) {
  return x.is_meta() || x.key_set().has(c10::DispatchKey::Python) || x.key_set().has(c10::DispatchKey::Functionalize) ||
         c10::impl::TorchDispatchModeTLS::any_modes_set();
}

ops::NormOutput run_traced_layer(const LayerInputs& inputs, const LayerCall& call, at::TensorList state) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.held.empty(),
                              "layer: expected weights without codes of their own (fp8_model_init) and without "
                              "fuse_wgrad_accumulation under torch.compile, got one with them");
  const at::Device device = inputs[kX]->device();
  for (const OptionalTensor& input : inputs) {
    TORCH_CHECK(!input || input->device() == device, "layer: expected x on the ", input->device(),
                " as its parameters, got it on ", device);
  }
  const bool record = at::GradMode::is_enabled();
  TracedLayer layer{.call = call};
  for (size_t first = 0; first < state.size(); first += kStateTensors) layer.keys.push_back(state[first]);
  for (size_t i = 0; record && i < kLayerInputs; ++i) {
    if (inputs[i] && inputs[i]->requires_grad()) layer.needs |= int64_t{1} << i;
  }
  const variable_list outputs =
      TracedLayerFunction::apply(inputs[kX], inputs[kResidual], inputs[kNormWeight], inputs[kNormBias], inputs[kWeight],
                                 inputs[kBias], inputs[kFc2Weight], inputs[kFc2Bias], std::move(layer), state, record);
  return {outputs[0], outputs.size() == 2 ? outputs[1] : at::Tensor()};
}

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("layer_forward(Tensor?[] inputs, Tensor[] state, " PLIMSOLL_CALL_SCHEMA
              ", bool record) -> (Tensor output, Tensor sum, Tensor scales)",
              {at::Tag::pt2_compliant_tag});
  library.def(
      "layer_backward(Tensor? grad, Tensor? grad_sum, Tensor?[] inputs, Tensor[] state, Tensor "
      "scales, " PLIMSOLL_CALL_SCHEMA ") -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) {
  library.impl("layer_forward", &layer_forward_cpu);
  library.impl("layer_backward", &layer_backward_cpu);
}

TORCH_LIBRARY_IMPL(plimsoll, Meta, library) {
  library.impl("layer_forward", &layer_forward_meta);
  library.impl("layer_backward", &layer_backward_meta);
}

}  // namespace plimsoll::python
