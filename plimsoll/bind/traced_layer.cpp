#include "plimsoll/bind/traced_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "plimsoll/bind/recipe_text.h"
#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/saved.h"
#include "plimsoll/ops/torch_internals/attached.h"
#include "plimsoll/ops/torch_internals/node_pointer.h"

namespace plimsoll::bind {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A forward pass as its backward pass finds it, by its node: attached to a tensor without elements, which a graph hands from
// one to the other as it does what the pass has saved.
at::Tensor ticket_of(ops::NodePointer node) {
  at::Tensor ticket = at::empty({0}, at::kFloat);
  ops::attach(ticket, std::move(node));
  return ticket;
}

torch::autograd::Node& node_of(const at::Tensor& ticket) {
  const auto* const node = ops::find_attached<ops::NodePointer>(ticket);
  TORCH_CHECK_VALUE(node != nullptr && *node != nullptr,
                    "ticket: expected that of a forward pass with gradients, got another tensor");
  return **node;
}

OptionalTensors listed(const LayerInputs& inputs) {
  OptionalTensors list;
  for (const OptionalTensor& input : inputs) list.push_back(input);
  return list;
}

bool has_bit(int64_t bits, size_t input) { return ((bits >> input) & 1) != 0; }

// A bit for each LayerInput that `which` is true of.
template <class Which>
int64_t bits_of(const LayerInputs& inputs, Which which) {
  int64_t bits = 0;
  for (size_t i = 0; i < kLayerInputs; ++i) {
    if (inputs[i] && which(*inputs[i])) bits |= int64_t{1} << i;
  }
  return bits;
}

// Outside the graph that the tensors belong to.
LayerInputs leaves(const OptionalTensors& tensors, int64_t needs) {
  TORCH_CHECK_VALUE(tensors.size() == kLayerInputs, "inputs: expected ", size_t{kLayerInputs}, ", got ",
                    tensors.size());
  LayerInputs inputs;
  for (size_t i = 0; i < kLayerInputs; ++i) {
    const OptionalTensor tensor = tensors.get(i);
    if (tensor) inputs[i] = tensor->detach().requires_grad_(has_bit(needs, i));
  }
  return inputs;
}

// Whether the pass may save x itself: not where it saves codes, or x + residual.
bool saves_x(bool has_norm, bool has_residual, std::string_view recipe) {
  if (has_norm) return !has_residual;
  if (is_auto(recipe)) return true;  // in some of its formats
  return recipe_of(recipe)->stored_operand(recipe::Role::kInput, recipe::GemmKind::kGradWeight).source ==
         recipe::ScaleSource::kNone;
}

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// kept: the x that the pass saves, its own copy: whoever compiles the graph may use the memory of x for something else.
ForwardResult layer_forward_cpu(const OptionalTensors& tensors, at::TensorList state, std::string_view recipe,
                                std::optional<bool> is_first_microbatch, std::string_view norm, bool zero_centered,
                                double epsilon, std::string_view activation, at::ArrayRef<double> activation_params,
                                int64_t needs, bool record, const OptionalTensors& held,
                                const std::vector<std::string>& held_recipes) {
  const LayerCall call{.recipe = std::string(recipe),
                       .is_first_microbatch = is_first_microbatch,
                       .normalization = std::string(norm),
                       .zero_centered = zero_centered,
                       .epsilon = epsilon,
                       .activation = std::string(activation),
                       .activation_params = activation_params.vec(),
                       .held = held_weights(held, held_recipes)};
  const at::AutoGradMode grad_mode(record);
  const LayerScaling scaling = layer_scaling(call, recipe_of(recipe), state);
  LayerInputs inputs = leaves(tensors, needs);
  TORCH_CHECK_VALUE(inputs[kX] && inputs[kWeight], "inputs: expected x and weight, got none");
  at::Tensor kept = at::empty({0}, inputs[kX]->options());
  if (needs != 0 && saves_x(inputs[kNormWeight].has_value(), inputs[kResidual].has_value(), recipe)) {
    kept = inputs[kX]->detach().clone(at::MemoryFormat::Contiguous);
    inputs[kX] = kept.detach().requires_grad_(has_bit(needs, kX));
  }
  const ops::NormOutput result = run_layer(inputs, call, scaling);
  const at::Tensor sum = result.sum.defined() ? result.sum.detach() : at::empty({0}, result.output.options());
  return {result.output.detach(), sum, kept, ticket_of(result.output.grad_fn())};
}

ForwardResult layer_forward_meta(const OptionalTensors& tensors, at::TensorList, std::string_view recipe,
                                 std::optional<bool>, std::string_view, bool, double, std::string_view,
                                 at::ArrayRef<double>, int64_t needs, bool, const OptionalTensors&,
                                 const std::vector<std::string>&) {
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
  const bool keeps = needs != 0 && saves_x(tensors.get(kNormWeight).has_value(), residual.has_value(), recipe);
  const auto like_x = [&](bool full) {
    return full ? ops::empty_meta(x.sym_sizes(), x, x.scalar_type()) : ops::empty_meta({0}, x, x.scalar_type());
  };
  return {ops::empty_meta(sizes, x, dtype), residual ? like_x(true) : ops::empty_meta({0}, x, dtype), like_x(keeps),
          ops::empty_meta({0}, x, at::kFloat)};
}

// Arguments of layer_pass_backward beside gradients and the ticket. kept and sum are what the pass has saved of what
// others may see: as arguments they stay as they are until then.
struct BackwardCall {
  at::Tensor kept;
  OptionalTensor sum;
  OptionalTensors parameters;  // as LayerInputs, without x and residual
  at::ScalarType x_dtype = at::kFloat, residual_dtype = at::kFloat;
  int64_t present = 0, needs = 0;  // bits of LayerInputs
};

// An empty tensor for each gradient that is asked for, in order. Those of x and residual have grad's shape but for the last size.
std::vector<at::Tensor> empty_gradients(const OptionalTensor& grad, const OptionalTensor& grad_sum,
                                        const BackwardCall& call) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < kLayerInputs; ++i) {
    if (!has_bit(call.needs, i)) continue;
    if (i != kX && i != kResidual) {
      const at::Tensor parameter = *call.parameters.get(i);
      gradients.push_back(at::empty_symint(parameter.sym_sizes(), parameter.options()));
      continue;
    }
    const at::Tensor& given = grad ? *grad : *grad_sum;
    std::vector<c10::SymInt> sizes = given.sym_sizes().vec();
    sizes.back() = call.parameters.get(kWeight)->sym_size(1);
    gradients.push_back(ops::empty_meta(sizes, given, i == kX ? call.x_dtype : call.residual_dtype));
  }
  return gradients;
}

void check_backward(const OptionalTensor& grad, const OptionalTensor& grad_sum, const BackwardCall& call) {
  TORCH_CHECK_VALUE(call.parameters.size() == kLayerInputs && call.parameters.get(kWeight), "parameters: expected ",
                    size_t{kLayerInputs}, " with a weight, got ", call.parameters.size());
  TORCH_CHECK_VALUE(call.parameters.get(kWeight)->dim() == 2, "parameters: expected a weight [out, in]");
  TORCH_CHECK_VALUE((grad || grad_sum) && (grad ? *grad : *grad_sum).dim() >= 1,
                    "layer: expected a gradient of one dimension or more, got none");
  for (size_t i = 0; i < kLayerInputs; ++i) {
    const bool is_parameter = i != kX && i != kResidual;
    TORCH_CHECK_VALUE(!is_parameter || !has_bit(call.needs, i) || call.parameters.get(i),
                      "parameters: expected number ", i, ", whose gradient is asked for");
  }
}

void check_seeds(const variable_list& seeds, const torch::autograd::Node& node) {
  TORCH_CHECK_VALUE(seeds.size() == node.num_inputs(), "layer: expected gradients of ", node.num_inputs(),
                    " results, got ", seeds.size());
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto& expected = node.input_metadata(i);
    TORCH_CHECK_VALUE(!seeds[i].defined() || expected.is_same_shape(seeds[i]), "layer: expected a gradient of shape ",
                      expected.shape_as_dim_vector(), ", got ", seeds[i].sizes());
  }
}

std::vector<at::Tensor> layer_backward_cpu(const OptionalTensor& grad, const OptionalTensor& grad_sum,
                                           const at::Tensor& ticket, const at::Tensor& kept, const OptionalTensor& sum,
                                           const OptionalTensors& parameters, at::ScalarType x_dtype,
                                           at::ScalarType residual_dtype, int64_t present, int64_t needs) {
  const BackwardCall call{kept, sum, parameters, x_dtype, residual_dtype, present, needs};
  check_backward(grad, grad_sum, call);
  variable_list seeds{grad.value_or(at::Tensor())};
  if (has_bit(present, kResidual)) seeds.push_back(grad_sum.value_or(at::Tensor()));
  torch::autograd::Node& node = node_of(ticket);
  check_seeds(seeds, node);
  // Not through the engine: the gradient's amax belongs to the backward pass that is under way.
  const variable_list gradients = node(std::move(seeds));
  std::vector<at::Tensor> wanted = empty_gradients(grad, grad_sum, call);
  size_t next = 0, place = 0;
  for (size_t i = 0; i < kLayerInputs; ++i) {
    if (!has_bit(present, i)) continue;
    const at::Tensor gradient = next < gradients.size() ? gradients[next++] : at::Tensor();
    if (!has_bit(needs, i)) continue;
    at::Tensor& result = wanted[place++];
    result = gradient.defined() ? gradient.to(result.scalar_type()) : result.zero_();
  }
  return wanted;
}

std::vector<at::Tensor> layer_backward_meta(const OptionalTensor& grad, const OptionalTensor& grad_sum,
                                            const at::Tensor& /*ticket*/, const at::Tensor& kept,
                                            const OptionalTensor& sum, const OptionalTensors& parameters,
                                            at::ScalarType x_dtype, at::ScalarType residual_dtype, int64_t present,
                                            int64_t needs) {
  const BackwardCall call{kept, sum, parameters, x_dtype, residual_dtype, present, needs};
  check_backward(grad, grad_sum, call);
  return empty_gradients(grad, grad_sum, call);
}

struct TracedLayer {
  LayerCall call;
  size_t state_tensors = 0;
  int64_t present = 0, needs = 0;
  at::ScalarType x_dtype = at::kFloat, residual_dtype = at::kFloat;
  std::vector<at::Tensor> parameters = {};  // undefined where absent, and for x and residual
  at::Tensor ticket = {}, kept = {}, sum = {};

  void exchange(ops::SavedTensors& tensors) {
    for (at::Tensor& parameter : parameters) tensors.exchange(parameter);
    for (at::Tensor* tensor : {&ticket, &kept, &sum}) tensors.exchange(*tensor);
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
    static const auto op = ops::find_operator<decltype(layer_forward_cpu)>("plimsoll::layer_pass");
    const LayerCall& call = layer.call;
    auto [output, sum, kept, ticket] =
        op.call(listed(inputs), state, call.recipe, call.is_first_microbatch, call.normalization, call.zero_centered,
                call.epsilon, call.activation, call.activation_params, layer.needs, record, OptionalTensors(), {});
    layer.x_dtype = x->scalar_type();
    if (residual) layer.residual_dtype = residual->scalar_type();
    for (size_t i = 0; i < kLayerInputs; ++i) {
      layer.parameters.push_back(i == kX || i == kResidual ? at::Tensor() : inputs[i].value_or(at::Tensor()));
    }
    layer.ticket = ticket;
    layer.kept = kept;
    if (residual) layer.sum = sum;
    ops::save(context, std::move(layer));
    variable_list outputs{output};
    if (residual) outputs.push_back(sum);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    ops::check_once_differentiable("layer");
    const TracedLayer layer = ops::load<TracedLayer>(context);
    OptionalTensors parameters;
    for (const at::Tensor& parameter : layer.parameters) parameters.push_back(ops::optional(parameter));
    static const auto op = ops::find_operator<decltype(layer_backward_cpu)>("plimsoll::layer_pass_backward");
    const std::vector<at::Tensor> wanted =
        op.call(ops::optional(gradients[0]), gradients.size() == 2 ? ops::optional(gradients[1]) : std::nullopt,
                layer.ticket, layer.kept, ops::optional(layer.sum), parameters, layer.x_dtype, layer.residual_dtype,
                layer.present, layer.needs);
    variable_list result(kLayerInputs + 2 + layer.state_tensors);  // those of the rest stay undefined
    size_t next = 0;
    for (size_t i = 0; i < kLayerInputs; ++i) {
      if (has_bit(layer.needs, i)) result[i] = wanted[next++];
    }
    return result;
  }
};

}  // namespace

ops::NormOutput run_traced_layer(const LayerInputs& inputs, const LayerCall& call, at::TensorList state) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.held.empty(),
                              "layer: expected no codes handed over and fuse_wgrad_accumulation=False where somebody "
                              "traces, got one of them");
  const at::Device device = inputs[kX]->device();
  for (const OptionalTensor& input : inputs) {
    TORCH_CHECK(!input || input->device() == device, "layer: expected x on the ", input->device(),
                " as its parameters, got it on ", device);
  }
  const bool record = at::GradMode::is_enabled();
  TracedLayer layer{.call = call, .state_tensors = state.size()};
  layer.present = bits_of(inputs, [](const at::Tensor&) { return true; });
  if (record) layer.needs = bits_of(inputs, [](const at::Tensor& input) { return input.requires_grad(); });
  const variable_list outputs =
      TracedLayerFunction::apply(inputs[kX], inputs[kResidual], inputs[kNormWeight], inputs[kNormBias], inputs[kWeight],
                                 inputs[kBias], inputs[kFc2Weight], inputs[kFc2Bias], std::move(layer), state, record);
  return {outputs[0], outputs.size() == 2 ? outputs[1] : at::Tensor()};
}

// needs: a bit for each LayerInput whose gradient will be asked for; record: amaxes count. save_input is not an
// argument: codes of the input are saved in its place. held, held_recipes: as of the layers (layers.cpp).
TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def(
      "layer_pass(Tensor?[] inputs, Tensor[] state, *, str recipe, bool? is_first_microbatch, str normalization, "
      "bool zero_centered, float epsilon, str activation, float[] activation_params, int needs, bool record, "
      "Tensor?[] held, str[] held_recipes) -> "
      "(Tensor output, Tensor sum, Tensor kept, Tensor ticket)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "layer_pass_backward(Tensor? grad, Tensor? grad_sum, *, Tensor ticket, Tensor kept, Tensor? sum, "
      "Tensor?[] parameters, ScalarType x_dtype, ScalarType residual_dtype, int present, int needs) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) {
  library.impl("layer_pass", &layer_forward_cpu);
  library.impl("layer_pass_backward", &layer_backward_cpu);
}

TORCH_LIBRARY_IMPL(plimsoll, Meta, library) {
  library.impl("layer_pass", &layer_forward_meta);
  library.impl("layer_pass_backward", &layer_backward_meta);
}

}  // namespace plimsoll::bind
