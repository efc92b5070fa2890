#include "plimsoll/ops/attention/attention_op.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

std::tuple<at::Tensor, at::Tensor> forward_cpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                               const OptionalTensor& key_lengths, const OptionalTensor& mask,
                                               const OptionalTensor& bias, double scale, std::string_view mask_type,
                                               double dropout, int64_t seed, int64_t window, at::IntArrayRef segments) {
  return attend({query, key, value}, {key_lengths, mask, bias, scale, parse_causal(mask_type, "attention"), dropout,
                                      seed, window, segments.vec()});
}

at::Tensor codes_forward_cpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const at::Tensor& key_scale, const at::Tensor& value_scale,
                             const OptionalTensor& key_lengths, const OptionalTensor& mask, const OptionalTensor& bias,
                             double scale, std::string_view mask_type, int64_t window) {
  const AttentionRules rules = {.key_lengths = key_lengths,
                                .mask = mask,
                                .bias = bias,
                                .scale = scale,
                                .causal = parse_causal(mask_type, "attention"),
                                .window = window};
  return std::get<0>(attend({query, key, value, key_scale, value_scale}, rules));
}

FourTensors backward_cpu(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                         const at::Tensor& value, const at::Tensor& output, const at::Tensor& lse,
                         const OptionalTensor& key_lengths, const OptionalTensor& mask, const OptionalTensor& bias,
                         double scale, std::string_view mask_type, double dropout, int64_t seed, bool wants_bias,
                         int64_t window, at::IntArrayRef segments) {
  const AttentionRules rules = {key_lengths, mask, bias,   scale,         parse_causal(mask_type, "attention"),
                                dropout,     seed, window, segments.vec()};
  check_attention({query, key, value}, rules);
  const AttentionOperands to = {empty_attention_output(query, query.sym_size(3)),
                                empty_attention_output(key, key.sym_size(3)),
                                empty_attention_output(value, value.sym_size(3))};
  const at::Tensor grad_bias =
      attend_backward(grad, {query, key, value}, {output, lse}, rules, {.to = to, .wants_bias = wants_bias});
  return {to.query, to.key, to.value, grad_bias};
}

std::tuple<at::Tensor, at::Tensor> packed_backward_cpu(const at::Tensor& grad, const at::Tensor& qkv, int64_t heads,
                                                       int64_t groups, bool interleaved, const at::Tensor& output,
                                                       const at::Tensor& lse, const OptionalTensor& key_lengths,
                                                       const OptionalTensor& mask, const OptionalTensor& bias,
                                                       double scale, std::string_view mask_type, double dropout,
                                                       int64_t seed, bool wants_bias, int64_t window,
                                                       at::IntArrayRef segments) {
  const PackedHeads packed = {heads, groups, interleaved};
  check_packed(qkv, packed);
  at::Tensor grad_qkv = at::empty_like(qkv);
  const at::Tensor grad_bias = attend_backward(
      grad, unpack_heads(qkv, packed), {output, lse},
      {key_lengths, mask, bias, scale, parse_causal(mask_type, "attention"), dropout, seed, window, segments.vec()},
      {.to = unpack_heads(grad_qkv, packed), .wants_bias = wants_bias});
  return {grad_qkv, grad_bias};
}

at::Tensor grad_bias_meta(const at::Tensor& like, const OptionalTensor& bias, bool wanted) {
  return wanted && bias ? empty_meta(bias->sym_sizes(), *bias, bias->scalar_type()) : empty_meta({0}, like, at::kFloat);
}

std::tuple<at::Tensor, at::Tensor> forward_meta(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                                const OptionalTensor& key_lengths, const OptionalTensor& mask,
                                                const OptionalTensor& bias, double, std::string_view, double, int64_t,
                                                int64_t, at::IntArrayRef) {
  check_one_device("attention", {query, key, value, key_lengths, mask, bias});
  const at::Tensor lse = empty_meta({query.sym_size(0), query.sym_size(1), query.sym_size(2)}, query, at::kFloat);
  return {empty_attention_output(query, value.sym_size(3)), lse};
}

at::Tensor codes_forward_meta(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const at::Tensor& key_scale, const at::Tensor& value_scale,
                              const OptionalTensor& key_lengths, const OptionalTensor& mask, const OptionalTensor& bias,
                              double, std::string_view, int64_t) {
  check_one_device("attention", {query, key, value, key_scale, value_scale, key_lengths, mask, bias});
  return empty_attention_output(query, value.sym_size(3));
}

FourTensors backward_meta(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& output, const at::Tensor& lse,
                          const OptionalTensor& key_lengths, const OptionalTensor& mask, const OptionalTensor& bias,
                          double, std::string_view, double, int64_t, bool wants_bias, int64_t, at::IntArrayRef) {
  check_one_device("attention", {query, grad, key, value, output, lse, key_lengths, mask, bias});
  return {empty_attention_output(query, query.sym_size(3)), empty_attention_output(key, key.sym_size(3)),
          empty_attention_output(value, value.sym_size(3)), grad_bias_meta(query, bias, wants_bias)};
}

std::tuple<at::Tensor, at::Tensor> packed_backward_meta(const at::Tensor& grad, const at::Tensor& qkv, int64_t, int64_t,
                                                        bool, const at::Tensor& output, const at::Tensor& lse,
                                                        const OptionalTensor& key_lengths, const OptionalTensor& mask,
                                                        const OptionalTensor& bias, double, std::string_view, double,
                                                        int64_t, bool wants_bias, int64_t, at::IntArrayRef) {
  check_one_device("attention", {qkv, grad, output, lse, key_lengths, mask, bias});
  return {at::empty_like(qkv), grad_bias_meta(qkv, bias, wants_bias)};
}

AttentionOptions options_of(const OptionalTensor& key_lengths, const OptionalTensor& mask, const OptionalTensor& bias,
                            double scale, std::string_view mask_type, double dropout, int64_t window) {
  const auto tensor = [](const OptionalTensor& x) { return x.value_or(at::Tensor()); };
  return {.scale = scale,
          .causal = parse_causal(mask_type, "attention"),
          .key_lengths = tensor(key_lengths),
          .mask = tensor(mask),
          .bias = tensor(bias),
          .dropout = dropout,
          .window = window};
}

at::Tensor attention_op(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const OptionalTensor& key_lengths, const OptionalTensor& mask, const OptionalTensor& bias,
                        double scale, std::string_view mask_type, double dropout, int64_t window) {
  return attention(query, key, value, options_of(key_lengths, mask, bias, scale, mask_type, dropout, window));
}

at::Tensor attention_over_codes_op(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                   const at::Tensor& key_scale, const at::Tensor& value_scale,
                                   const OptionalTensor& key_lengths, const OptionalTensor& mask,
                                   const OptionalTensor& bias, double scale, std::string_view mask_type,
                                   int64_t window) {
  return attention_over_codes(query, {key, key_scale}, {value, value_scale},
                              options_of(key_lengths, mask, bias, scale, mask_type, 0, window));
}

at::Tensor attention_packed_op(const at::Tensor& qkv, int64_t heads, int64_t groups, bool interleaved,
                               const OptionalTensor& key_lengths, const OptionalTensor& mask,
                               const OptionalTensor& bias, double scale, std::string_view mask_type, double dropout,
                               int64_t window) {
  return attention_packed(qkv, {heads, groups, interleaved},
                          options_of(key_lengths, mask, bias, scale, mask_type, dropout, window));
}

}  // namespace

void define_attention(torch::Library& library) {
  // [batch, heads or groups, seq, channels]; the scale is taken as it is.
  library.def(
      "attention_forward(Tensor query, Tensor key, Tensor value, *, Tensor? key_lengths, Tensor? mask, Tensor? bias, "
      "float scale, str mask_type, float dropout, int seed, int window=0, int[] segments=[]) -> (Tensor output, Tensor lse)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "attention_codes_forward(Tensor query, Tensor key, Tensor value, *, Tensor key_scale, Tensor value_scale, "
      "Tensor? key_lengths, Tensor? mask, Tensor? bias, float scale, str mask_type, int window=0) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, *, Tensor output, Tensor lse, "
      "Tensor? key_lengths, Tensor? mask, Tensor? bias, float scale, str mask_type, float dropout, int seed, "
      "bool wants_bias, int window=0, int[] segments=[]) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_bias)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "attention_packed_backward(Tensor grad, Tensor qkv, *, int heads, int groups, bool interleaved, Tensor output, "
      "Tensor lse, Tensor? key_lengths, Tensor? mask, Tensor? bias, float scale, str mask_type, float dropout, "
      "int seed, bool wants_bias, int window=0, int[] segments=[]) -> (Tensor grad_qkv, Tensor grad_bias)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, *, Tensor? key_lengths=None, Tensor? mask=None, "
      "Tensor? bias=None, float scale=0.0, str mask_type='no_mask', float dropout=0.0, int window=0) -> Tensor",
      &attention_op);
  library.def(
      "attention_over_codes(Tensor query, Tensor key, Tensor value, *, Tensor key_scale, Tensor value_scale, "
      "Tensor? key_lengths=None, Tensor? mask=None, Tensor? bias=None, float scale=0.0, str mask_type='no_mask', "
      "int window=0) -> Tensor",
      &attention_over_codes_op);
  library.def(
      "attention_packed(Tensor qkv, *, int heads, int groups, bool interleaved=False, Tensor? key_lengths=None, "
      "Tensor? mask=None, Tensor? bias=None, float scale=0.0, str mask_type='no_mask', float dropout=0.0, "
      "int window=0) -> Tensor",
      &attention_packed_op);
}

void register_attention_cpu(torch::Library& library) {
  library.impl("attention_forward", &forward_cpu);
  library.impl("attention_codes_forward", &codes_forward_cpu);
  library.impl("attention_backward", &backward_cpu);
  library.impl("attention_packed_backward", &packed_backward_cpu);
}

void register_attention_meta(torch::Library& library) {
  library.impl("attention_forward", &forward_meta);
  library.impl("attention_codes_forward", &codes_forward_meta);
  library.impl("attention_backward", &backward_meta);
  library.impl("attention_packed_backward", &packed_backward_meta);
}

namespace dispatch {

std::tuple<at::Tensor, at::Tensor> attention_forward(const AttentionOperands& operands, const AttentionRules& rules) {
  static const auto op = find_operator<decltype(forward_cpu)>("plimsoll::attention_forward");
  return op.call(operands.query, operands.key, operands.value, rules.key_lengths, rules.mask, rules.bias, rules.scale,
                 name(rules.causal), rules.dropout, rules.seed, rules.window, rules.segments);
}

at::Tensor attention_codes_forward(const AttentionOperands& operands, const AttentionRules& rules) {
  static const auto op = find_operator<decltype(codes_forward_cpu)>("plimsoll::attention_codes_forward");
  return op.call(operands.query, operands.key, operands.value, operands.key_scale, operands.value_scale,
                 rules.key_lengths, rules.mask, rules.bias, rules.scale, name(rules.causal), rules.window);
}

std::array<at::Tensor, 4> attention_backward(const at::Tensor& grad, const AttentionOperands& operands,
                                             const AttentionSaved& saved, const AttentionRules& rules,
                                             bool wants_bias) {
  static const auto op = find_operator<decltype(backward_cpu)>("plimsoll::attention_backward");
  const auto [query, key, value, bias] = op.call(
      grad, operands.query, operands.key, operands.value, saved.output, saved.lse, rules.key_lengths, rules.mask,
      rules.bias, rules.scale, name(rules.causal), rules.dropout, rules.seed, wants_bias, rules.window, rules.segments);
  return {query, key, value, bias};
}

std::array<at::Tensor, 2> attention_packed_backward(const at::Tensor& grad, const at::Tensor& qkv,
                                                    const PackedHeads& packed, const AttentionSaved& saved,
                                                    const AttentionRules& rules, bool wants_bias) {
  static const auto op = find_operator<decltype(packed_backward_cpu)>("plimsoll::attention_packed_backward");
  const auto [grad_qkv, bias] =
      op.call(grad, qkv, packed.heads, packed.groups, packed.interleaved, saved.output, saved.lse, rules.key_lengths,
              rules.mask, rules.bias, rules.scale, name(rules.causal), rules.dropout, rules.seed, wants_bias,
              rules.window, rules.segments);
  return {grad_qkv, bias};
}

}  // namespace dispatch
}  // namespace plimsoll::ops
