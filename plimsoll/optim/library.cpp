// The optimizer's step as torch knows it: torch.ops.plimsoll.adamw_.
#include <torch/library.h>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/ops/dtype.h"

namespace plimsoll::optim {
namespace {

void adamw_op(at::Tensor& parameter, const at::Tensor& grad, at::Tensor& moment1, at::Tensor& moment2, int64_t step,
              double lr, double beta1, double beta2, double eps, double weight_decay) {
  TORCH_CHECK(parameter.scalar_type() == at::kFloat, "adamw_: expected a parameter of float32, got ",
              parameter.scalar_type());
  for (const at::Tensor* tensor :
       {&std::as_const(parameter), &grad, &std::as_const(moment1), &std::as_const(moment2)}) {
    TORCH_CHECK(tensor->is_contiguous() && tensor->sizes() == parameter.sizes(), "adamw_: expected contiguous tensors ",
                parameter.sizes(), ", got ", tensor->sizes(), " with strides ", tensor->strides());
  }
  TORCH_CHECK(moment1.scalar_type() == moment2.scalar_type() && moment1.scalar_type() != at::kHalf,
              "adamw_: expected both moments of float32 or bfloat16, got ", moment1.scalar_type(), " and ",
              moment2.scalar_type());
  TORCH_CHECK(step >= 1, "adamw_: expected steps counted from 1, got ", step);
  kernels::adamw({.master = parameter.data_ptr<float>(),
                  .grad = grad.const_data_ptr(),
                  .grad_format = ops::format_of(grad.scalar_type(), "adamw_"),
                  .moment1 = moment1.data_ptr(),
                  .moment2 = moment2.data_ptr(),
                  .moment_format = ops::format_of(moment1.scalar_type(), "adamw_"),
                  .seed = 0,
                  .count = parameter.numel(),
                  .lr = lr,
                  .beta1 = beta1,
                  .beta2 = beta2,
                  .eps = eps,
                  .weight_decay = weight_decay,
                  .step = step});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  // step: of this update, from 1. Moments fp32 or bf16 (stochastic rounding).
  library.def(
      "adamw_(Tensor(a!) parameter, Tensor grad, Tensor(b!) moment1, Tensor(c!) moment2, int step, float lr, "
      "float beta1=0.9, float beta2=0.999, float eps=1e-08, float weight_decay=0.01) -> ()");
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) { library.impl("adamw_", &adamw_op); }

}  // namespace plimsoll::optim
