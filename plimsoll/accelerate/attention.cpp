// Scaled dot-product attention: the operator that torch chooses on the CPU where nothing is dropped out, and its gradients.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/ops/attention/attention_pass.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::acceleration {
namespace {

struct AttentionArguments {
  const at::Tensor &query, &key, &value;
  double dropout = 0;
  bool is_causal = false;
  std::optional<at::Tensor> mask = {};  // added to the scores
  std::optional<double> scale = {};
};

bool has_dense_channels(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1; }

bool broadcasts(const at::Tensor& mask, const AttentionArguments& call) {
  if (mask.dim() != 2 && mask.dim() != 4) return false;
  const std::array<int64_t, 4> sizes = {call.query.size(0), call.query.size(1), call.query.size(2), call.key.size(2)};
  for (int64_t dim = 1; dim <= mask.dim(); ++dim) {
    const int64_t size = mask.size(-dim);
    if (size != 1 && size != sizes[static_cast<size_t>(4 - dim)]) return false;
  }
  return true;
}

Outcome judge_attention(const AttentionArguments& call) {
  const auto& [query, key, value, dropout, is_causal, mask, scale] = call;
  if (!of_one_kind(query, key, value) || (mask && !has_values(*mask))) return Outcome::kDtype;
  const bool fits = query.dim() == 4 && key.dim() == 4 && key.sizes().equals(value.sizes()) &&
                    query.size(0) == key.size(0) && query.size(3) == key.size(3) && query.numel() > 0 &&
                    key.numel() > 0 && query.size(1) % key.size(1) == 0;
  if (!fits || dropout != 0 || (mask && (is_causal || !broadcasts(*mask, call)))) return Outcome::kShape;
  if (!has_dense_channels(query) || !has_dense_channels(key) || !has_dense_channels(value)) return Outcome::kStrides;
  return choose(
      {.format = ops::format_of(query.scalar_type(), "accelerate"), .is_causal = is_causal, .queries = query.size(2)},
      processor(runtime::isa()));
}

ops::AttentionRules rules_of(const AttentionArguments& call) {
  ops::AttentionRules rules;
  rules.bias = call.mask;
  rules.scale = call.scale.value_or(1 / std::sqrt(static_cast<double>(call.query.size(3))));
  rules.causal = call.is_causal ? ops::Causal::kTopLeft : ops::Causal::kNone;
  return rules;
}

// Gradients as torch leaves them: [batch, heads, rows, channels] with rows before heads in memory.
at::Tensor rows_first(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

// torch writes 0 as the logarithm for a query that sees no key.
at::Tensor logarithms(const at::Tensor& lse, bool masked) {
  const at::Tensor rows = at::empty({lse.size(0), lse.size(2), lse.size(1)}, lse.options()).transpose(1, 2);
  rows.copy_(lse);
  if (masked) rows.masked_fill_(rows.eq(-INFINITY), 0);
  return rows;
}

// query, key, value, dropout_p, is_causal, attn_mask, scale -> output, logsumexp
Outcome attention(ops::CallStack& stack) {
  constexpr size_t kArguments = 7;
  const AttentionArguments call = {.query = tensor(stack, kArguments, 0),
                                   .key = tensor(stack, kArguments, 1),
                                   .value = tensor(stack, kArguments, 2),
                                   .dropout = argument(stack, kArguments, 3).toDouble(),
                                   .is_causal = argument(stack, kArguments, 4).toBool(),
                                   .mask = optional_tensor(stack, kArguments, 5),
                                   .scale = argument(stack, kArguments, 6).toOptional<double>()};
  if (const Outcome outcome = judge_attention(call); outcome != Outcome::kReplaced) return outcome;
  at::Tensor output = at::empty_like(call.query);
  if (!has_dense_channels(output)) return Outcome::kStrides;
  const at::Tensor lse = at::empty(call.query.sizes().slice(0, 3), call.query.options().dtype(at::kFloat));
  ops::attend_into({call.query, call.key, call.value}, rules_of(call), {output, lse});
  at::Tensor rows = logarithms(lse, call.mask.has_value());
  replace_arguments(stack, kArguments, std::move(output), std::move(rows));
  return Outcome::kReplaced;
}

// grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale -> gradients of query, key, value
Outcome attention_backward(ops::CallStack& stack) {
  constexpr size_t kArguments = 10;
  const at::Tensor &grad = tensor(stack, kArguments, 0), &output = tensor(stack, kArguments, 4),
                   &lse = tensor(stack, kArguments, 5);
  const AttentionArguments call = {.query = tensor(stack, kArguments, 1),
                                   .key = tensor(stack, kArguments, 2),
                                   .value = tensor(stack, kArguments, 3),
                                   .dropout = argument(stack, kArguments, 6).toDouble(),
                                   .is_causal = argument(stack, kArguments, 7).toBool(),
                                   .mask = optional_tensor(stack, kArguments, 8),
                                   .scale = argument(stack, kArguments, 9).toOptional<double>()};
  if (!of_one_kind(call.query, grad, output) || lse.scalar_type() != at::kFloat) return Outcome::kDtype;
  if (const Outcome outcome = judge_attention(call); outcome != Outcome::kReplaced) return outcome;
  const ops::AttentionOperands operands = {call.query, call.key, call.value};
  ops::AttentionOperands to = {rows_first(call.query), rows_first(call.key), rows_first(call.value)};
  ops::attend_backward(grad, operands, {output, lse.contiguous()}, rules_of(call), {.to = to});
  replace_arguments(stack, kArguments, std::move(to.query), std::move(to.key), std::move(to.value));
  return Outcome::kReplaced;
}

}  // namespace

std::vector<Variant> attention_variants() {
  return {{"_scaled_dot_product_flash_attention_for_cpu", Operator::kAttention, attention},
          {"_scaled_dot_product_flash_attention_for_cpu_backward", Operator::kAttentionBackward, attention_backward}};
}

}  // namespace plimsoll::acceleration
