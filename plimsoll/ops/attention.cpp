#include "plimsoll/ops/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "plimsoll/ops/linear_pass.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<double> scale_of(double scale) { return scale > 0 ? std::optional(scale) : std::nullopt; }

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const AttentionOptions& options) {
    const auto [wide, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        query.to(at::kFloat), key.to(at::kFloat), value.to(at::kFloat), /*dropout_p=*/0.0, options.causal,
        /*attn_mask=*/std::nullopt, scale_of(options.scale));
    at::Tensor output = wide.to(query.scalar_type());
    context->save_for_backward({query, key, value, output, log_sum});
    context->saved_data["causal"] = options.causal;
    context->saved_data["scale"] = options.scale;
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("attention");
    const variable_list saved = context->get_saved_variables();
    const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
    const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        wide(gradients[0]), wide(saved[0]), wide(saved[1]), wide(saved[2]), wide(saved[3]), saved[4],
        /*dropout_p=*/0.0, context->saved_data["causal"].toBool(), /*attn_mask=*/std::nullopt,
        scale_of(context->saved_data["scale"].toDouble()));
    const at::ScalarType dtype = saved[0].scalar_type();
    return {query.to(dtype), key.to(dtype), value.to(dtype), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options) {
  const at::ScalarType dtype = query.scalar_type();
  TORCH_CHECK(
      (dtype == at::kBFloat16 || dtype == at::kHalf) && key.scalar_type() == dtype && value.scalar_type() == dtype,
      "attention: expected query, key and value all bf16 or all fp16, got ", dtype, ", ", key.scalar_type(), " and ",
      value.scalar_type());
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() && key.size(0) == query.size(0) &&
                  key.size(1) == query.size(1) && key.size(3) == query.size(3),
              "attention: expected [batch, heads, seq, channels] that agree but in seq, got ", query.sizes(), ", ",
              key.sizes(), " and ", value.sizes());
  TORCH_CHECK(!options.causal || query.size(2) == key.size(2), "attention: expected as many keys as queries under the ",
              "causal mask, got ", query.size(2), " queries and ", key.size(2), " keys");
  return AttentionFunction::apply(query, key, value, options);
}

}  // namespace plimsoll::ops
