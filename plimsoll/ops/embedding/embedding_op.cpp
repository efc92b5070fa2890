#include "plimsoll/ops/embedding/embedding_op.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "plimsoll/kernels/embedding/embedding.h"
#include "plimsoll/kernels/embedding/embedding_cuda.h"
#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/embedding/embedding.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

void check_shapes(const at::Tensor& tokens, const at::Tensor& token_weight,
                  const std::optional<at::Tensor>& position_weight, int64_t first_position) {
  TORCH_CHECK(token_weight.dim() == 2, "embedding: expected a token weight [vocabulary, dim], got ",
              token_weight.sym_sizes());
  TORCH_CHECK(tokens.dim() == 2, "embedding: expected tokens int64 [batch, seq], got ", tokens.sym_sizes());
  if (!position_weight) return;
  TORCH_CHECK(position_weight->dim() == 2 && position_weight->sym_size(1) == token_weight.sym_size(1) &&
                  position_weight->scalar_type() == token_weight.scalar_type(),
              "embedding: expected a position weight of ", token_weight.scalar_type(), " [context, ",
              token_weight.sym_size(1), "], got ", position_weight->scalar_type(), " ", position_weight->sym_sizes());
  // The difference, because a sum could overflow.
  TORCH_CHECK(first_position >= 0 && tokens.sym_size(1) <= position_weight->sym_size(0) - first_position,
              "embedding: expected at most ", position_weight->sym_size(0), " positions, got ", tokens.sym_size(1),
              " from ", first_position);
}

// Dense and, on the CPU, every token in 0 .. vocabulary - 1: a device would have to be waited for.
at::Tensor check_tokens(const at::Tensor& values, const at::Tensor& tokens, int64_t vocabulary) {
  check_same_device(values, tokens, "embedding", "tokens");
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
              "embedding: expected tokens int64 [batch, seq], got ", c10::toString(tokens.scalar_type()), " ",
              tokens.sizes());
  at::Tensor dense = tokens.contiguous();
  if (!dense.device().is_cpu()) return dense;
  const int64_t* begin = dense.const_data_ptr<int64_t>();
  const int64_t* end = begin + dense.numel();
  const int64_t* wrong = std::find_if(begin, end, [=](int64_t token) { return token < 0 || token >= vocabulary; });
  TORCH_CHECK(wrong == end, "embedding: expected tokens from 0 to ", vocabulary - 1, ", got ", *wrong);
  return dense;
}

at::Tensor embedding_forward_op(const at::Tensor& tokens, const at::Tensor& token_weight,
                                const std::optional<at::Tensor>& position_weight, int64_t first_position,
                                at::ScalarType dtype) {
  const format::Format weight_format = check_device_values(token_weight, "embedding", "the token weight");
  const format::Format output_format = format_of(dtype, "embedding");
  check_shapes(tokens, token_weight, position_weight, first_position);
  if (position_weight) check_same_device(token_weight, *position_weight, "embedding", "the position weight");
  const at::Tensor dense = check_tokens(token_weight, tokens, token_weight.size(0)), weight = token_weight.contiguous();
  const int64_t seq = tokens.size(1), dim = weight.size(1);
  at::Tensor positions;
  if (position_weight) positions = position_weight->narrow(0, first_position, seq).contiguous();
  at::Tensor output = at::empty({tokens.size(0), seq, dim}, weight.options().dtype(dtype));
  const watch::Span span("embedding", {.bytes = 2 * traffic(output)});
  watch::audit_operator({.op = "embedding", .input = weight_format, .output = output_format});
  const kernels::EmbeddingForward args{.shape = {tokens.size(0), seq, dim},
                                       .tokens = dense.const_data_ptr<int64_t>(),
                                       .vocabulary = weight.size(0),
                                       .token_weight = weight.const_data_ptr(),
                                       .position_weight = positions.defined() ? positions.const_data_ptr() : nullptr,
                                       .weight_format = weight_format,
                                       .output = output.mutable_data_ptr(),
                                       .output_format = output_format};
  on_device_of(output, [&](auto... stream) { kernels::embedding_forward(args, stream...); });
  return output;
}

// Gradients of tensors on a CUDA device: torch sorts the tokens there, and equal ones keep their order.
void embedding_backward_on_device(const kernels::EmbeddingBackward& args, const at::Tensor& tokens) {
  const auto [sorted, places] = at::sort(tokens.view({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const kernels::SortedTokens in_order{sorted.const_data_ptr<int64_t>(), places.const_data_ptr<int64_t>()};
  on_stream_of(tokens, [&](const auto& stream) { kernels::embedding_backward(args, in_order, stream); });
}

std::tuple<at::Tensor, at::Tensor> embedding_backward_op(const at::Tensor& grad, const at::Tensor& tokens,
                                                         int64_t vocabulary, int64_t positions, int64_t first_position,
                                                         at::ScalarType dtype) {
  const format::Format grad_format = check_device_values(grad, "embedding", "the gradient");
  const at::Tensor dense = check_tokens(grad, tokens, vocabulary), values = grad.contiguous();
  TORCH_CHECK(grad.dim() == 3 && grad.size(0) == tokens.size(0) && grad.size(1) == tokens.size(1),
              "embedding: expected a gradient [", tokens.size(0), ", ", tokens.size(1), ", dim], got ", grad.sizes());
  const int64_t seq = tokens.size(1), dim = grad.size(2);
  TORCH_CHECK(positions >= 0 && first_position >= 0 && (positions == 0 || seq <= positions - first_position),
              "embedding: expected at most ", positions, " positions, got ", seq, " from ", first_position);
  const format::Format format = format_of(dtype, "embedding");
  const at::TensorOptions options = grad.options().dtype(dtype);
  // The CPU's kernel writes each row, a device's those of tokens that occur.
  const std::array<int64_t, 2> sizes = {vocabulary, dim};
  at::Tensor token_grad = grad.is_cuda() ? at::zeros(sizes, options) : at::empty(sizes, options);
  at::Tensor position_grad = at::empty({positions, dim}, options);
  at::Tensor seen;
  if (positions > 0) {
    position_grad.narrow(0, 0, first_position).zero_();
    position_grad.narrow(0, first_position + seq, positions - first_position - seq).zero_();
    seen = position_grad.narrow(0, first_position, seq);
  }
  const watch::Span span("embedding backward", {.bytes = traffic(values, token_grad, position_grad)});
  watch::audit_operator({.op = "embedding backward", .input = grad_format, .output = format});
  const kernels::EmbeddingBackward args{.shape = {tokens.size(0), seq, dim},
                                        .tokens = dense.const_data_ptr<int64_t>(),
                                        .grad = values.const_data_ptr(),
                                        .grad_format = grad_format,
                                        .vocabulary = vocabulary,
                                        .token_grad = token_grad.mutable_data_ptr(),
                                        .position_grad = seen.defined() ? seen.mutable_data_ptr() : nullptr,
                                        .weight_format = format};
  if (grad.is_cuda()) {
    embedding_backward_on_device(args, dense);
  } else {
    kernels::embedding_backward(args);
  }
  return {token_grad, position_grad};
}

at::Tensor embedding_forward_meta(const at::Tensor& tokens, const at::Tensor& token_weight,
                                  const std::optional<at::Tensor>& position_weight, int64_t first_position,
                                  at::ScalarType dtype) {
  check_one_device("embedding", {token_weight, position_weight, tokens});
  check_shapes(tokens, token_weight, position_weight, first_position);
  return empty_meta({tokens.sym_size(0), tokens.sym_size(1), token_weight.sym_size(1)}, token_weight, dtype);
}

std::tuple<at::Tensor, at::Tensor> embedding_backward_meta(const at::Tensor& grad, const at::Tensor& tokens,
                                                           int64_t vocabulary, int64_t positions, int64_t,
                                                           at::ScalarType dtype) {
  check_one_device("embedding", {grad, tokens});
  return {empty_meta({vocabulary, grad.sym_size(2)}, grad, dtype),
          empty_meta({positions, grad.sym_size(2)}, grad, dtype)};
}

at::Tensor embedding_op(const at::Tensor& tokens, const at::Tensor& token_weight,
                        const std::optional<at::Tensor>& position_weight, int64_t first_position,
                        std::optional<at::ScalarType> dtype) {
  return embedding({.tokens = tokens,
                    .token_weight = token_weight,
                    .position_weight = position_weight.value_or(at::Tensor()),
                    .first_position = first_position},
                   dtype.value_or(token_weight.scalar_type()));
}

}  // namespace

void define_embedding(torch::Library& library) {
  library.def(
      "embedding_forward(Tensor tokens, Tensor token_weight, Tensor? position_weight, int first_position, "
      "ScalarType dtype) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "embedding_backward(Tensor grad, Tensor tokens, *, int vocabulary, int positions, int first_position, "
      "ScalarType dtype) -> (Tensor token_grad, Tensor position_grad)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "embedding(Tensor tokens, Tensor token_weight, Tensor? position_weight=None, int first_position=0, *, "
      "ScalarType? dtype=None) -> Tensor",
      &embedding_op);
}

void register_embedding(torch::Library& library) {
  library.impl("embedding_forward", &embedding_forward_op);
  library.impl("embedding_backward", &embedding_backward_op);
}

void register_embedding_meta(torch::Library& library) {
  library.impl("embedding_forward", &embedding_forward_meta);
  library.impl("embedding_backward", &embedding_backward_meta);
}

namespace dispatch {

at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& token_weight,
                             const std::optional<at::Tensor>& position_weight, int64_t first_position,
                             at::ScalarType dtype) {
  static const auto op = find_operator<decltype(embedding_forward_op)>("plimsoll::embedding_forward");
  return op.call(tokens, token_weight, position_weight, first_position, dtype);
}

std::tuple<at::Tensor, at::Tensor> embedding_backward(const at::Tensor& grad, const at::Tensor& tokens,
                                                      int64_t vocabulary, int64_t positions, int64_t first_position,
                                                      at::ScalarType dtype) {
  static const auto op = find_operator<decltype(embedding_backward_op)>("plimsoll::embedding_backward");
  return op.call(grad, tokens, vocabulary, positions, first_position, dtype);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
