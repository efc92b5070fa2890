#include "plimsoll/ops/attention/attention_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/kernels/attention/attention_kernel.h"
#include "plimsoll/ops/attention/attention_segments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using kernels::AttentionMatrixStrides;

at::Tensor with_dense_channels(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) <= 1 ? x : x.contiguous(); }

kernels::AttentionInput input(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}
kernels::AttentionOutput output(const at::Tensor& x) {
  return {x.mutable_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

kernels::AttentionShape shape_of(const AttentionOperands& operands) {
  return {.batch = operands.query.size(0),
          .heads = operands.query.size(1),
          .groups = operands.key.size(1),
          .queries = operands.query.size(2),
          .keys = operands.key.size(2),
          .channels = operands.query.size(3),
          .value_channels = operands.value.size(3)};
}

std::array<int64_t, 4> matrix_sizes(const AttentionOperands& operands) {
  return {operands.query.size(0), operands.query.size(1), operands.query.size(2), operands.key.size(2)};
}

// Shape of a mask or bias before it is broadcast.
std::array<int64_t, 4> extent_of(const at::Tensor& x, std::array<int64_t, 4> sizes) {
  if (is_by_distance(x, sizes[2], sizes[3])) {
    sizes[3] += sizes[2] - 1;
    sizes[2] = 1;
  }
  return sizes;
}

kernels::AttentionScale scale_of(const at::Tensor& scale, const at::Tensor& codes) {
  if (!scale.defined()) return {};
  const at::Tensor expanded = scale.expand(codes.sizes().slice(0, 3));
  return {expanded.const_data_ptr<float>(), expanded.stride(0), expanded.stride(1), expanded.stride(2)};
}

// A mask, a bias or its gradient as the kernel sees it; keeps it alive.
struct MatrixView {
  at::Tensor expanded;
  AttentionMatrixStrides strides = {};
  int64_t first = 0;  // element of query 0 and key 0

  MatrixView() = default;
  MatrixView(const at::Tensor& x, const std::array<int64_t, 4>& sizes)
      : expanded(x.expand(extent_of(x, sizes))),
        strides{expanded.stride(0), expanded.stride(1), expanded.stride(2), expanded.stride(3)} {
    if (!is_by_distance(x, sizes[2], sizes[3])) return;
    strides.query = -strides.key;
    first = (sizes[2] - 1) * strides.key;
  }
  const void* data() const {
    return static_cast<const char*>(expanded.const_data_ptr()) + first * expanded.element_size();
  }
};

// The kernel's view of the rules, and what keeps it valid.
struct KernelRules {
  kernels::AttentionRules rules;
  at::Tensor key_lengths;
  MatrixView mask, bias;

  KernelRules(const AttentionOperands& operands, const AttentionRules& from) {
    rules.scale = static_cast<float>(from.scale);
    rules.causal = from.causal;
    rules.window = std::min(from.window, operands.key.size(2));
    rules.dropout = {.probability = static_cast<float>(from.dropout), .seed = static_cast<uint64_t>(from.seed)};
    const auto sizes = matrix_sizes(operands);
    if (from.key_lengths) {
      key_lengths = from.key_lengths->contiguous();
      rules.key_lengths = key_lengths.const_data_ptr<int64_t>();
    }
    if (from.mask) {
      mask = MatrixView(*from.mask, sizes);
      rules.mask = static_cast<const uint8_t*>(mask.data());
      rules.mask_strides = mask.strides;
    }
    if (from.bias) {
      bias = MatrixView(*from.bias, sizes);
      rules.bias = bias.data();
      rules.bias_format = format_of(from.bias->scalar_type(), "attention");
      rules.bias_strides = bias.strides;
    }
  }
};

void check_matrix(const std::optional<at::Tensor>& matrix, const char* name, const AttentionOperands& operands) {
  if (!matrix) return;
  const auto sizes = extent_of(*matrix, matrix_sizes(operands));
  bool fits = matrix->dim() <= 4 && matrix->device().is_cpu();
  for (int64_t dim = 1; fits && dim <= matrix->dim(); ++dim) {
    const int64_t size = matrix->size(-dim);
    fits = size == 1 || size == sizes[static_cast<size_t>(4 - dim)];
  }
  TORCH_CHECK(fits, "attention: expected a ", name, " on the CPU that broadcasts to ", at::IntArrayRef(sizes), ", got ",
              matrix->sizes(), " on ", matrix->device());
}

// Keys or values that are codes, and their scale.
void check_codes(const at::Tensor& codes, const at::Tensor& scale, const char* name) {
  TORCH_CHECK(codes.scalar_type() == at::kByte && codes.device().is_cpu(), "attention: expected ", name,
              " as codes (uint8) on the CPU, got ", codes.scalar_type(), " on ", codes.device());
  bool fits = scale.defined() && scale.scalar_type() == at::kFloat && scale.device().is_cpu() && scale.dim() <= 3 &&
              codes.dim() == 4;
  for (int64_t dim = 1; fits && dim <= scale.dim(); ++dim) {
    fits = scale.size(-dim) == 1 || scale.size(-dim) == codes.size(3 - dim);
  }
  TORCH_CHECK(fits, "attention: expected a scale of ", name,
              " of fp32 that broadcasts to its [batch, groups, keys], got ", scale.sizes(), " of ",
              scale.scalar_type());
}

// Pairs of a query and a key that a causal rule hides.
double skipped_pairs(Causal causal, double queries, double keys) {
  switch (causal) {
    case Causal::kNone:
      return 0;
    case Causal::kTopLeft:
      return keys <= queries ? keys * (keys - 1) / 2 : queries * keys - queries * (queries + 1) / 2;
    case Causal::kBottomRight:
      return queries <= keys ? queries * (queries - 1) / 2 : queries * keys - keys * (keys + 1) / 2;
  }
  runtime::unexpected("attention: causal", static_cast<int>(causal));
}

// Pairs of a query and a key that it sees.
double seen_pairs(const AttentionRules& rules, double queries, double keys) {
  const double seen = queries * keys - skipped_pairs(rules.causal, queries, keys);
  const double window = static_cast<double>(rules.window);
  if (window == 0 || window >= keys) return seen;
  // Pairs before the windows lie as if the first `window` keys, and under kTopLeft as many queries, were not there.
  const double rest = rules.causal == Causal::kTopLeft ? std::max(queries - window, 0.0) : queries;
  return seen - (rest * (keys - window) - skipped_pairs(rules.causal, rest, keys - window));
}

// Multiplications and additions of so many products [queries, keys] x channels a head, of the pairs that a causal rule
// and segments leave; masks and lengths, whose values would have to be read, count as if they let everything through.
double operations_of(const AttentionOperands& operands, const AttentionRules& rules, double products) {
  const double queries = static_cast<double>(operands.query.size(2)), keys = static_cast<double>(operands.key.size(2));
  const double heads = static_cast<double>(operands.query.size(0) * operands.query.size(1));
  double pairs = rules.segments.empty() ? seen_pairs(rules, queries, keys) : 0;
  for (const int64_t length : rules.segments) {
    pairs += seen_pairs(rules, static_cast<double>(length), static_cast<double>(length));
  }
  return products * heads * pairs * static_cast<double>(operands.query.size(3) + operands.value.size(3));
}

}  // namespace

bool is_by_distance(const at::Tensor& x, int64_t queries, int64_t keys) {
  return queries > 1 && x.dim() >= 1 && (x.dim() == 1 || x.size(-2) == 1) && x.size(-1) == queries + keys - 1;
}

void check_packed(const at::Tensor& qkv, const PackedHeads& packed) {
  // Each alone first, because a sum of numbers of any size could overflow.
  const int64_t all = qkv.dim() == 4 ? qkv.size(2) : 0;
  TORCH_CHECK(
      qkv.dim() == 4 && packed.heads > 0 && packed.groups > 0 && packed.heads <= all && packed.groups <= all &&
          all == packed.heads + 2 * packed.groups,
      "attention: expected qkv [batch, seq, heads + 2 groups, channels] of one head and one group or more, got ",
      qkv.sizes(), " for ", packed.heads, " heads and ", packed.groups, " groups");
  TORCH_CHECK(!packed.interleaved || packed.heads == packed.groups,
              "attention: expected as many groups as heads where they are interleaved, got ", packed.groups, " and ",
              packed.heads);
}

AttentionOperands unpack_heads(const at::Tensor& qkv, const PackedHeads& packed) {
  const at::Tensor heads_first = qkv.transpose(1, 2);
  if (packed.interleaved) {
    const at::Tensor parts = heads_first.unflatten(1, {packed.heads, 3});
    return {parts.select(2, 0), parts.select(2, 1), parts.select(2, 2)};
  }
  return {heads_first.narrow(1, 0, packed.heads), heads_first.narrow(1, packed.heads, packed.groups),
          heads_first.narrow(1, packed.heads + packed.groups, packed.groups)};
}

at::Tensor empty_attention_output(const at::Tensor& query, const c10::SymInt& channels) {
  // Batch, seq, heads where strides do not tell.
  std::array<int64_t, 3> order = {0, 2, 1};
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return query.sym_stride(a) > query.sym_stride(b); });
  const std::vector<c10::SymInt> sizes = {query.sym_size(0), query.sym_size(1), query.sym_size(2), channels};
  std::vector<c10::SymInt> strides(4, c10::SymInt(1));
  c10::SymInt step = channels;
  for (size_t i = order.size(); i-- > 0;) {
    strides[static_cast<size_t>(order[i])] = step;
    step = step * sizes[static_cast<size_t>(order[i])];
  }
  return at::empty_strided_symint(sizes, strides, query.options().requires_grad(false));
}

void check_attention(const AttentionOperands& operands, const AttentionRules& rules) {
  const at::Tensor &query = operands.query, &key = operands.key, &value = operands.value;
  check_values(query, "attention", "query");
  if (operands.has_codes()) {
    check_codes(key, operands.key_scale, "key");
    check_codes(value, operands.value_scale, "value");
  } else {
    check_values(key, "attention", "key");
    check_values(value, "attention", "value");
    TORCH_CHECK(key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
                "attention: expected query, key and value of one dtype, got ", query.scalar_type(), ", ",
                key.scalar_type(), " and ", value.scalar_type());
  }
  const bool shaped = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  TORCH_CHECK(shaped && key.size(0) == query.size(0) && key.size(3) == query.size(3) &&
                  value.sizes().slice(0, 3) == key.sizes().slice(0, 3),
              "attention: expected query [batch, heads, queries, channels], key and value [batch, groups, keys, "
              "channels], got ",
              query.sizes(), ", ", key.sizes(), " and ", value.sizes());
  TORCH_CHECK(key.size(1) > 0 && query.size(1) % key.size(1) == 0, "attention: expected groups that divide ",
              query.size(1), " heads, got ", key.size(1));
  TORCH_CHECK(rules.dropout >= 0 && rules.dropout < 1, "attention: expected a dropout in [0, 1), got ", rules.dropout);
  TORCH_CHECK(rules.window == 0 || (rules.window > 0 && rules.causal != Causal::kNone),
              "attention: expected a window of 0, or of one key or more with a causal rule, got ", rules.window,
              rules.causal == Causal::kNone ? " without one" : "");
  check_matrix(rules.mask, "mask", operands);
  check_matrix(rules.bias, "bias", operands);
  TORCH_CHECK(!rules.mask || rules.mask->scalar_type() == at::kBool, "attention: expected a mask of bool, got ",
              rules.mask ? rules.mask->scalar_type() : at::kBool);
  if (rules.bias) check_values(*rules.bias, "attention", "bias");
  if (rules.key_lengths) {
    const at::Tensor& lengths = *rules.key_lengths;
    TORCH_CHECK(lengths.scalar_type() == at::kLong && lengths.device().is_cpu() && lengths.dim() == 1 &&
                    lengths.size(0) == query.size(0),
                "attention: expected key_lengths [", query.size(0), "] of int64 or int32 on the CPU, got ",
                lengths.sizes(), " of ", lengths.scalar_type(), " on ", lengths.device());
  }
  check_segments(operands, rules);
}

void attend_into(const AttentionOperands& operands, const AttentionRules& rules, const AttentionSaved& to) {
  check_attention(operands, rules);
  const at::Tensor query = with_dense_channels(operands.query), key = with_dense_channels(operands.key),
                   value = with_dense_channels(operands.value);
  const KernelRules kernel(operands, rules);
  const format::Format format = format_of(query.scalar_type(), "attention");
  const double operations = operations_of(operands, rules, 2);
  const watch::Span span("attention", {.operations = operations, .bytes = traffic(query, key, value, to.output)});
  const kernels::AttentionForward call = {.shape = shape_of(operands),
                                          .rules = kernel.rules,
                                          .format = format,
                                          .q = input(query),
                                          .k = input(key),
                                          .v = input(value),
                                          .cache_format = operands.has_codes() ? format::Format::kE4m3 : format,
                                          .k_scale = scale_of(operands.key_scale, key),
                                          .v_scale = scale_of(operands.value_scale, value),
                                          .output = output(to.output),
                                          .lse = to.lse.mutable_data_ptr<float>()};
  watch::audit_operator({.op = "attention",
                         .input = format,
                         .cache = call.cache_format,
                         .output = format,
                         .isa = kernels::attention_isa(format, call.cache_format),
                         .operations = operations});
  attend_segments(call, rules.segments);
}

std::tuple<at::Tensor, at::Tensor> attend(const AttentionOperands& operands, const AttentionRules& rules) {
  check_attention(operands, rules);
  const at::Tensor& query = operands.query;
  const AttentionSaved to = {empty_attention_output(query, operands.value.sym_size(3)),
                             at::empty(query.sizes().slice(0, 3), query.options().dtype(at::kFloat))};
  attend_into(operands, rules, to);
  return {to.output, to.lse};
}

namespace {

void check_attention_backward(const at::Tensor& grad, const AttentionOperands& operands, const AttentionSaved& saved,
                              const AttentionRules& rules) {
  check_attention(operands, rules);
  TORCH_CHECK(!operands.has_codes(), "attention: expected a backward pass over values, got codes");
  std::array<int64_t, 4> sizes = {operands.query.size(0), operands.query.size(1), operands.query.size(2),
                                  operands.value.size(3)};
  check_values(grad, "attention", "the gradient");
  check_values(saved.output, "attention", "the output");
  TORCH_CHECK(grad.sizes() == sizes && saved.output.sizes() == sizes &&
                  saved.output.scalar_type() == operands.query.scalar_type(),
              "attention: expected a gradient and an output ", at::IntArrayRef(sizes), ", the output of ",
              operands.query.scalar_type(), ", got ", grad.sizes(), " and ", saved.output.sizes(), " of ",
              saved.output.scalar_type());
  TORCH_CHECK(saved.lse.scalar_type() == at::kFloat && saved.lse.device().is_cpu() && saved.lse.is_contiguous() &&
                  saved.lse.sizes() == at::IntArrayRef(sizes).slice(0, 3),
              "attention: expected a dense lse ", at::IntArrayRef(sizes).slice(0, 3), " of fp32, got ",
              saved.lse.sizes(), " of ", saved.lse.scalar_type());
}

}  // namespace

at::Tensor attend_backward(const at::Tensor& grad, const AttentionOperands& operands, const AttentionSaved& saved,
                           const AttentionRules& rules, const AttentionGradients& gradients) {
  check_attention_backward(grad, operands, saved, rules);
  const AttentionOperands& to = gradients.to;
  const at::Tensor query = with_dense_channels(operands.query), key = with_dense_channels(operands.key),
                   value = with_dense_channels(operands.value),
                   upstream = with_dense_channels(grad.to(query.scalar_type())),
                   out = with_dense_channels(saved.output);
  const bool sums = gradients.wants_bias && rules.bias;
  const at::Tensor grad_bias = sums ? at::zeros(rules.bias->sizes(), query.options().dtype(at::kFloat))
                                    : at::empty({0}, query.options().dtype(at::kFloat));
  const MatrixView summed = sums ? MatrixView(grad_bias, matrix_sizes(operands)) : MatrixView();
  const KernelRules kernel(operands, rules);
  const double operations = operations_of(operands, rules, 5);
  const watch::Span span("attention backward",
                         {.operations = operations, .bytes = 2 * traffic(query, key, value) + traffic(upstream, out)});
  const kernels::AttentionBackward call = {
      .shape = shape_of(operands),
      .rules = kernel.rules,
      .format = format_of(query.scalar_type(), "attention"),
      .q = input(query),
      .k = input(key),
      .v = input(value),
      .output = input(out),
      .grad_output = input(upstream),
      .lse = saved.lse.const_data_ptr<float>(),
      .grad_q = output(to.query),
      .grad_k = output(to.key),
      .grad_v = output(to.value),
      .factors = gradients.factors,
      .grad_bias = sums ? grad_bias.mutable_data_ptr<float>() + summed.first : nullptr,
      .grad_bias_strides = summed.strides};
  watch::audit_operator({.op = "attention backward",
                         .input = call.format,
                         .output = call.format,
                         .isa = kernels::attention_isa(call.format, call.format),
                         .operations = operations});
  attend_segments_backward(call, rules.segments);
  return sums ? grad_bias.to(rules.bias->scalar_type()) : grad_bias;
}

}  // namespace plimsoll::ops
