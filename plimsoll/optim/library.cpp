// The optimizer's step as torch knows it: torch.ops.plimsoll.adamw_.
#include <torch/library.h>

#include <optional>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/optim/adamw.h"

namespace plimsoll::optim {
namespace {

void check_shape(const at::Tensor& tensor, const at::Tensor& parameter) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.sizes() == parameter.sizes() && !tensor.is_neg(),
              "adamw_: expected contiguous tensors ", parameter.sizes(), ", got ", tensor.sizes(), " with strides ",
              tensor.strides(), tensor.is_neg() ? ", a view of negated memory" : "");
}

void adamw_op(at::Tensor& parameter, const at::Tensor& grad, at::Tensor& moment1, at::Tensor& moment2, int64_t step,
              double lr, double beta1, double beta2, double eps, double weight_decay,
              const std::optional<at::Tensor>& given_master, int64_t seed, int64_t index) {
  const at::Tensor master = given_master.value_or(parameter);
  TORCH_CHECK(master.scalar_type() == at::kFloat, "adamw_: expected a parameter or its master of float32, got ",
              master.scalar_type());
  const format::Format parameter_format = ops::format_of(parameter.scalar_type(), "adamw_");
  TORCH_CHECK(!given_master || parameter_format != format::Format::kFp32,
              "adamw_: expected no master of a parameter of float32, got one");
  for (const at::Tensor* tensor :
       {&std::as_const(parameter), &master, &grad, &std::as_const(moment1), &std::as_const(moment2)}) {
    check_shape(*tensor, parameter);
  }
  TORCH_CHECK(moment1.scalar_type() == moment2.scalar_type() && moment1.scalar_type() != at::kHalf,
              "adamw_: expected both moments of float32 or bfloat16, got ", moment1.scalar_type(), " and ",
              moment2.scalar_type());
  TORCH_CHECK(step >= 1, "adamw_: expected steps counted from 1, got ", step);
  kernels::adamw({.master = master.data_ptr<float>(),
                  .grad = grad.const_data_ptr(),
                  .grad_format = ops::format_of(grad.scalar_type(), "adamw_"),
                  .moment1 = moment1.data_ptr(),
                  .moment2 = moment2.data_ptr(),
                  .moment_format = ops::format_of(moment1.scalar_type(), "adamw_"),
                  .seed = seed_of(static_cast<uint64_t>(seed), static_cast<uint64_t>(index)),
                  .count = parameter.numel(),
                  .lr = lr,
                  .beta1 = beta1,
                  .beta2 = beta2,
                  .eps = eps,
                  .weight_decay = weight_decay,
                  .step = step,
                  .narrow = given_master ? parameter.data_ptr() : nullptr,
                  .narrow_format = parameter_format});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  // step: of this update, from 1. Moments fp32 or bf16 (stochastic rounding, drawn by seed, index of the parameter,
  // step and element). master: the fp32 values of a bf16 or fp16 parameter, which becomes their nearest.
  library.def(
      "adamw_(Tensor(a!) parameter, Tensor grad, Tensor(b!) moment1, Tensor(c!) moment2, *, int step, float lr, "
      "float beta1=0.9, float beta2=0.999, float eps=1e-08, float weight_decay=0.01, Tensor(d!)? master=None, "
      "int seed=0, int index=0) -> ()");
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) { library.impl("adamw_", &adamw_op); }

// Torch's fallback for views of negated memory cannot write through an argument: it ends the process.
TORCH_LIBRARY_IMPL(plimsoll, Negative, library) { library.impl("adamw_", torch::CppFunction::makeFallthrough()); }

}  // namespace plimsoll::optim
