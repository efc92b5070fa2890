#include "plimsoll/ops/rotary/rotary_op.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "plimsoll/kernels/rotary/rotary.h"
#include "plimsoll/kernels/rotary/rotary_cuda.h"
#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

void check_rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t position_dim,
                  int64_t copied_heads) {
  TORCH_CHECK((x.dim() == 4 && (position_dim == 0 || position_dim == 1)) || (x.dim() == 3 && position_dim == 0),
              "rotary: expected x of four dimensions with positions along 0 or 1, or of three along 0, got ",
              x.sym_sizes(), " along ", position_dim);
  const bool each_token = x.dim() == 4 && cosine.dim() == 3;
  TORCH_CHECK(
      (cosine.dim() == 2 || each_token) && cosine.scalar_type() == at::kFloat && sine.scalar_type() == at::kFloat &&
          cosine.sym_sizes() == sine.sym_sizes(),
      "rotary: expected cosine and sine of float32 [positions, rotated] or, for each token, [.., .., rotated], got ",
      cosine.sym_sizes(), " of ", cosine.scalar_type(), " and ", sine.sym_sizes(), " of ", sine.scalar_type());
  TORCH_CHECK(each_token || cosine.sym_size(0) >= x.sym_size(position_dim), "rotary: expected angles for ",
              x.sym_size(position_dim), " positions, got ", cosine.sym_size(0));
  TORCH_CHECK(!each_token || (cosine.sym_size(0) == x.sym_size(0) && cosine.sym_size(1) == x.sym_size(1)),
              "rotary: expected angles for each token of ", x.sym_sizes(), ", got ", cosine.sym_sizes());
  TORCH_CHECK(cosine.sym_size(-1) % 2 == 0 && cosine.sym_size(-1) <= x.sym_size(-1),
              "rotary: expected an even number of angles, at most ", x.sym_size(-1), ", got ", cosine.sym_size(-1));
  TORCH_CHECK(copied_heads >= 0 && copied_heads <= x.sym_size(-2), "rotary: expected copied_heads from 0 to ",
              x.sym_size(-2), ", got ", copied_heads);
}

// One stride from token to token, and dense channels.
at::Tensor one_stride_of(const at::Tensor& x) {
  const int64_t last = x.dim() - 1;
  const bool dense_channels = x.stride(last) == 1 || x.size(last) <= 1;
  const bool one_stride = x.dim() == 3 || x.size(0) == 1 || x.size(1) == 1 || x.stride(0) == x.size(1) * x.stride(1);
  return dense_channels && one_stride ? x : x.contiguous();
}

int64_t token_stride(const at::Tensor& x) {
  if (x.dim() == 3) return x.stride(0);
  return x.size(1) == 1 ? x.stride(0) : x.stride(1);
}

at::Tensor rotary_turn_op(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t position_dim,
                          bool interleaved, bool transposed, int64_t copied_heads) {
  const format::Format format = check_device_values(x, "rotary", "x");
  check_same_device(x, cosine, "rotary", "cosine");
  check_same_device(x, sine, "rotary", "sine");
  check_rotary(x, cosine, sine, position_dim, copied_heads);
  const at::Tensor input = one_stride_of(x), c = cosine.contiguous(), s = sine.contiguous();
  at::Tensor output = at::empty(x.sizes(), x.options());
  const bool each_token = c.dim() == x.dim() - 1;
  const int64_t tokens = x.dim() == 4 ? x.size(0) * x.size(1) : x.size(0);
  const watch::Span span("rotary", {.bytes = traffic(input, output)});
  if (output.numel() == 0) return output;
  watch::audit_operator({.op = "rotary", .input = format, .output = format});
  const kernels::Rotary args{.tokens = tokens,
                             .heads = x.size(-2),
                             .channels = x.size(-1),
                             .rotated = c.size(-1),
                             .copied_heads = copied_heads,
                             .x = input.const_data_ptr(),
                             .x_token_stride = token_stride(input),
                             .x_head_stride = input.stride(-2),
                             .y = output.mutable_data_ptr(),
                             .format = format,
                             .cosine = c.const_data_ptr<float>(),
                             .sine = s.const_data_ptr<float>(),
                             .positions = each_token ? tokens : x.size(position_dim),
                             .repeats = each_token || position_dim == 1 ? 1 : x.size(1),
                             .interleaved = interleaved,
                             .transposed = transposed};
  on_device_of(output, [&](auto... stream) { kernels::rotary(args, stream...); });
  return output;
}

at::Tensor rotary_meta(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int64_t position_dim,
                       bool /*interleaved*/, bool /*transposed*/, int64_t copied_heads) {
  check_one_device("rotary", {x, cosine, sine});
  check_rotary(x, cosine, sine, position_dim, copied_heads);
  return empty_meta(x.sym_sizes(), x, x.scalar_type());
}

at::Tensor rotary_op(const at::Tensor& x, const at::Tensor& angles, int64_t position_dim, bool interleaved) {
  return rotary(x, angles, {.position_dim = position_dim, .interleaved = interleaved});
}

}  // namespace

void define_rotary(torch::Library& library) {
  library.def(
      "rotary_turn(Tensor x, Tensor cosine, Tensor sine, *, int position_dim, bool interleaved, bool transposed, "
      "int copied_heads=0) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  library.def("rotary(Tensor x, Tensor angles, *, int position_dim=0, bool interleaved=False) -> Tensor", &rotary_op);
}

void register_rotary(torch::Library& library) { library.impl("rotary_turn", &rotary_turn_op); }
void register_rotary_meta(torch::Library& library) { library.impl("rotary_turn", &rotary_meta); }

namespace dispatch {

at::Tensor rotary(const at::Tensor& x, const RotaryTurns& turns, const RotaryOptions& options, Turn turn) {
  static const auto op = find_operator<decltype(rotary_turn_op)>("plimsoll::rotary_turn");
  return op.call(x, turns.cosine, turns.sine, options.position_dim, options.interleaved, turn == Turn::kTransposed,
                 options.copied_heads);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
