#include "plimsoll/ops/attention/attention_segments.h"

#include <algorithm>
#include <type_traits>

namespace plimsoll::ops {
namespace {

template <class View>
View rows_from(View view, int64_t row, int64_t element_bytes) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
  view.data = static_cast<Byte*>(view.data) + row * view.row_stride * element_bytes;
  return view;
}

// The part of a call that is one segment: its tokens begin at the row `begin`.
template <class Call>
Call segment_of(const Call& call, int64_t begin, int64_t length) {
  const int64_t bytes = format::bytes(call.format);
  Call part = call;
  part.shape.queries = part.shape.keys = length;
  part.rules.window = std::min(call.rules.window, length);
  part.rules.dropout.offset = static_cast<uint64_t>(begin);
  part.q = rows_from(call.q, begin, bytes);
  part.k = rows_from(call.k, begin, bytes);
  part.v = rows_from(call.v, begin, bytes);
  part.output = rows_from(call.output, begin, bytes);
  part.lse = call.lse + begin * call.shape.batch * call.shape.heads;
  return part;
}

kernels::AttentionBackward backward_segment_of(const kernels::AttentionBackward& call, int64_t begin, int64_t length) {
  const int64_t bytes = format::bytes(call.format);
  kernels::AttentionBackward part = segment_of(call, begin, length);
  part.grad_output = rows_from(call.grad_output, begin, bytes);
  part.grad_q = rows_from(call.grad_q, begin, bytes);
  part.grad_k = rows_from(call.grad_k, begin, bytes);
  part.grad_v = rows_from(call.grad_v, begin, bytes);
  return part;
}

}  // namespace

void check_segments(const AttentionOperands& operands, const AttentionRules& rules) {
  if (rules.segments.empty()) return;
  int64_t left = operands.query.size(2);
  bool fits = operands.key.size(2) == left && !operands.has_codes();
  for (const int64_t length : rules.segments) {
    fits = fits && length > 0 && length <= left;
    if (fits) left -= length;
  }
  TORCH_CHECK(fits && left == 0, "attention: expected segments of one token or more that make up ",
              operands.query.size(2), " queries and as many keys, got ", at::IntArrayRef(rules.segments), " of ",
              operands.query.size(2), " and ", operands.key.size(2));
  TORCH_CHECK(!rules.key_lengths && !rules.mask && !rules.bias,
              "attention: expected segments without key_lengths, mask and bias, got one of them, too");
}

void attend_segments(const kernels::AttentionForward& call, const std::vector<int64_t>& segments) {
  if (segments.empty()) kernels::attention_forward(call);
  int64_t begin = 0;
  for (const int64_t length : segments) {
    kernels::attention_forward(segment_of(call, begin, length));
    begin += length;
  }
}

void attend_segments_backward(const kernels::AttentionBackward& call, const std::vector<int64_t>& segments) {
  if (segments.empty()) kernels::attention_backward(call);
  int64_t begin = 0;
  for (const int64_t length : segments) {
    kernels::attention_backward(backward_segment_of(call, begin, length));
    begin += length;
  }
}

}  // namespace plimsoll::ops
