#include "plimsoll/ops/attention/attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "plimsoll/ops/attention/attention_composed.h"
#include "plimsoll/ops/attention/attention_op.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/random_seed.h"
#include "plimsoll/ops/tensor/saved.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// query: [..., channels], or the fused projection.
AttentionRules rules_of(const AttentionOptions& options, const at::Tensor& query) {
  check_one_device("attention", {query, options.key_lengths, options.mask, options.bias});
  AttentionRules rules = {.key_lengths = optional(options.key_lengths),
                          .mask = optional(options.mask),
                          .bias = optional(options.bias),
                          .scale = options.scale,
                          .causal = options.causal,
                          .dropout = options.dropout,
                          .window = options.window,
                          .segments = options.segments};
  if (rules.scale == 0) rules.scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(query.size(3), 1)));
  if (rules.dropout > 0) rules.seed = draw_seed();
  if (rules.key_lengths && rules.key_lengths->scalar_type() == at::kInt) {
    rules.key_lengths = rules.key_lengths->to(at::kLong);
  }
  return rules;
}

// Inputs: query, key and value, or qkv alone.
struct AttentionState {
  std::vector<at::Tensor> inputs;
  PackedHeads packed = {0, 0};
  at::Tensor output, lse, key_lengths, mask, bias;
  AttentionRules rules;  // without its tensors

  AttentionState(std::vector<at::Tensor> tensors, const std::tuple<at::Tensor, at::Tensor>& result,
                 const AttentionRules& from)
      : inputs(std::move(tensors)), output(std::get<0>(result)), lse(std::get<1>(result)), rules(from) {
    key_lengths = std::exchange(rules.key_lengths, {}).value_or(at::Tensor());
    mask = std::exchange(rules.mask, {}).value_or(at::Tensor());
    bias = std::exchange(rules.bias, {}).value_or(at::Tensor());
  }
  void exchange(SavedTensors& tensors) {
    for (at::Tensor& tensor : inputs) tensors.exchange(tensor);
    for (at::Tensor* tensor : {&output, &lse, &key_lengths, &mask, &bias}) tensors.exchange(*tensor);
  }
  AttentionRules all_rules() const {
    AttentionRules all = rules;
    all.key_lengths = optional(key_lengths);
    all.mask = optional(mask);
    all.bias = optional(bias);
    return all;
  }
};

at::Tensor unless_empty(const at::Tensor& gradient, bool wanted) { return wanted ? gradient : at::Tensor(); }

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const std::optional<at::Tensor>& /*bias*/,
                            const AttentionRules& rules) {
    AttentionState state({query, key, value}, dispatch::attention_forward({query, key, value}, rules), rules);
    at::Tensor output = state.output;
    save(context, std::move(state));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("attention");
    if (!gradients[0].defined()) return variable_list(5);
    const AttentionState state = load<AttentionState>(context);
    const bool wants_bias = state.bias.defined() && context->needs_input_grad(3);
    const std::array<at::Tensor, 4> grads =
        dispatch::attention_backward(gradients[0], {state.inputs[0], state.inputs[1], state.inputs[2]},
                                     {state.output, state.lse}, state.all_rules(), wants_bias);
    return {grads[0], grads[1], grads[2], unless_empty(grads[3], wants_bias), at::Tensor()};
  }
};

class PackedAttentionFunction : public torch::autograd::Function<PackedAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const std::optional<at::Tensor>& /*bias*/,
                            const PackedHeads& packed, const AttentionRules& rules) {
    AttentionState state({qkv}, dispatch::attention_forward(unpack_heads(qkv, packed), rules), rules);
    state.packed = packed;
    at::Tensor output = state.output;
    save(context, std::move(state));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("attention");
    if (!gradients[0].defined()) return variable_list(4);
    const AttentionState state = load<AttentionState>(context);
    const bool wants_bias = state.bias.defined() && context->needs_input_grad(1);
    const std::array<at::Tensor, 2> grads = dispatch::attention_packed_backward(
        gradients[0], state.inputs[0], state.packed, {state.output, state.lse}, state.all_rules(), wants_bias);
    return {grads[0], unless_empty(grads[1], wants_bias), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options) {
  TORCH_CHECK(query.dim() == 4, "attention: expected query [batch, heads, queries, channels], got ", query.sizes());
  check_one_device("attention", {query, key, value});
  if (is_opaque(query) && composes_attention(query, key, options))
    return composed_attention(query, key, value, options);
  if (query.is_cuda()) return torch_attention(query, key, value, options);
  const AttentionRules rules = rules_of(options, query);
  if (!at::GradMode::is_enabled()) return std::get<0>(dispatch::attention_forward({query, key, value}, rules));
  return AttentionFunction::apply(query, key, value, optional(options.bias), rules);
}

at::Tensor attention_over_codes(const at::Tensor& query, const AttentionCodes& key, const AttentionCodes& value,
                                const AttentionOptions& options) {
  TORCH_CHECK(query.dim() == 4, "attention: expected query [batch, heads, queries, channels], got ", query.sizes());
  TORCH_CHECK(options.dropout == 0, "attention: expected no dropout over codes, got ", options.dropout);
  return dispatch::attention_codes_forward({query, key.codes, value.codes, key.scale, value.scale},
                                           rules_of(options, query));
}

at::Tensor attention_packed(const at::Tensor& qkv, const PackedHeads& packed, const AttentionOptions& options) {
  check_packed(qkv, packed);
  if (is_opaque(qkv) || qkv.is_cuda()) {
    const AttentionOperands parts = unpack_heads(qkv, packed);
    if (qkv.is_cuda()) return torch_attention(parts.query, parts.key, parts.value, options).transpose(1, 2);
    if (composes_attention(parts.query, parts.key, options))
      return composed_attention(parts.query, parts.key, parts.value, options).transpose(1, 2);
  }
  return PackedAttentionFunction::apply(qkv, optional(options.bias), packed, rules_of(options, qkv)).transpose(1, 2);
}

}  // namespace plimsoll::ops
