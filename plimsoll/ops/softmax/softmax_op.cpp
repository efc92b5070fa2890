#include "plimsoll/ops/softmax/softmax_op.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "plimsoll/kernels/softmax/softmax.h"
#include "plimsoll/kernels/softmax/softmax_cuda.h"
#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/softmax/softmax.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

kernels::SoftmaxShape softmax_shape(const at::Tensor& x) {
  return {.batch = x.size(0), .heads = x.size(1), .queries = x.size(2), .keys = x.size(3)};
}

at::Tensor softmax_forward_op(const at::Tensor& x, double scale, std::string_view mask_type,
                              const std::optional<at::Tensor>& mask) {
  const format::Format format = check_device_values(x, "softmax", "x");
  TORCH_CHECK(x.dim() == 4, "softmax: expected x [batch, heads, queries, keys], got ", x.sizes());
  const at::Tensor dense = x.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  kernels::SoftmaxForward args{.shape = softmax_shape(x),
                               .x = dense.const_data_ptr(),
                               .y = y.mutable_data_ptr(),
                               .format = format,
                               .scale = static_cast<float>(scale),
                               .causal = parse_causal(mask_type, "softmax")};
  at::Tensor broadcast;
  if (mask) {
    check_same_device(x, *mask, "softmax", "the mask");
    TORCH_CHECK(mask->scalar_type() == at::kBool, "softmax: expected a mask of bool, got ", mask->scalar_type());
    broadcast = mask->contiguous().expand(x.sizes());
    if (broadcast.size(3) > 1 && broadcast.stride(3) != 1) broadcast = broadcast.contiguous();
    args.mask = reinterpret_cast<const uint8_t*>(broadcast.const_data_ptr<bool>());
    args.mask_batch_stride = broadcast.stride(0);
    args.mask_head_stride = broadcast.stride(1);
    args.mask_query_stride = broadcast.stride(2);
  }
  const watch::Span span("softmax", {.bytes = traffic(dense, y)});
  watch::audit_operator({.op = "softmax", .input = args.format, .output = args.format});
  on_device_of(y, [&](auto... stream) { kernels::softmax_forward(args, stream...); });
  return y;
}

// scale * y * (grad - sum(y * grad)) by torch's operators, in FP32.
at::Tensor composed_gradient(const at::Tensor& y, const at::Tensor& grad, double scale) {
  const at::Tensor values = y.to(at::kFloat), weighted = values * grad.to(at::kFloat);
  const at::Tensor sums = weighted.sum(-1, /*keepdim=*/true);
  return ((weighted - values * sums) * scale).to(y.scalar_type());
}

at::Tensor softmax_backward_op(const at::Tensor& y, const at::Tensor& grad, double scale) {
  const format::Format format = check_device_values(y, "softmax", "y");
  TORCH_CHECK(y.dim() == 4, "softmax: expected y [batch, heads, queries, keys], got ", y.sizes());
  check_device_values(grad, "softmax", "the gradient");
  check_same_device(y, grad, "softmax", "the gradient");
  check_sizes(grad, y.sizes(), "softmax", "a gradient");
  const at::Tensor y_dense = y.contiguous(), grad_dense = grad.to(y.scalar_type()).contiguous();
  if (y.is_cuda()) return composed_gradient(y_dense, grad_dense, scale);
  at::Tensor dx = at::empty(y.sizes(), y_dense.options());
  const watch::Span span("softmax backward", {.bytes = traffic(y_dense, grad_dense, dx)});
  watch::audit_operator({.op = "softmax backward", .input = format, .output = format});
  kernels::softmax_backward({.shape = softmax_shape(y),
                             .y = y_dense.const_data_ptr(),
                             .dy = grad_dense.const_data_ptr(),
                             .dx = dx.mutable_data_ptr(),
                             .format = format,
                             .scale = static_cast<float>(scale)});
  return dx;
}

at::Tensor softmax_forward_meta(const at::Tensor& x, double, std::string_view, const std::optional<at::Tensor>& mask) {
  check_one_device("softmax", {x, mask});
  return empty_like_dense(x, x.scalar_type());
}

at::Tensor softmax_backward_meta(const at::Tensor& y, const at::Tensor& grad, double) {
  check_one_device("softmax", {y, grad});
  return empty_like_dense(y, y.scalar_type());
}

at::Tensor softmax_op(const at::Tensor& x, double scale, std::string_view mask_type,
                      const std::optional<at::Tensor>& mask) {
  return softmax(x,
                 {.scale = scale, .causal = parse_causal(mask_type, "softmax"), .mask = mask.value_or(at::Tensor())});
}

}  // namespace

void define_softmax(torch::Library& library) {
  library.def("softmax_forward(Tensor x, float scale, str mask_type, Tensor? mask) -> Tensor",
              {at::Tag::pt2_compliant_tag});
  library.def("softmax_backward(Tensor y, Tensor grad, float scale) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("softmax(Tensor x, float scale=1.0, str mask_type='no_mask', Tensor? mask=None) -> Tensor", &softmax_op);
}

void register_softmax(torch::Library& library) {
  library.impl("softmax_forward", &softmax_forward_op);
  library.impl("softmax_backward", &softmax_backward_op);
}

void register_softmax_meta(torch::Library& library) {
  library.impl("softmax_forward", &softmax_forward_meta);
  library.impl("softmax_backward", &softmax_backward_meta);
}

namespace dispatch {

at::Tensor softmax_forward(const at::Tensor& x, double scale, std::string_view mask_type,
                           const std::optional<at::Tensor>& mask) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, double, std::string_view, const std::optional<at::Tensor>&)>(
          "plimsoll::softmax_forward");
  return op.call(x, scale, mask_type, mask);
}

at::Tensor softmax_backward(const at::Tensor& y, const at::Tensor& grad, double scale) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("plimsoll::softmax_backward");
  return op.call(y, grad, scale);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
