#include "plimsoll/models/team/norm.h"

#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

// [cols] as FP32: the vector's own memory, or `scratch`.
const float* fp32_of(const at::Tensor& vector, float* scratch) {
  if (!vector.defined()) return nullptr;
  if (vector.scalar_type() == at::kFloat) return vector.const_data_ptr<float>();
  kernels::rescale({.input = vector.const_data_ptr(),
                    .input_format = ops::format_of(vector.scalar_type(), "step"),
                    .output = scratch,
                    .count = vector.numel()});
  return scratch;
}

}  // namespace

void StepNorm::run(kernels::NormForward args, float* scratch) const {
  args.kind = kind;
  args.cols = cols();
  args.weight = fp32_of(weight, scratch);
  args.bias = fp32_of(bias, scratch + cols());
  args.zero_centered = zero_centered;
  args.epsilon = static_cast<float>(epsilon);
  kernels::norm_forward(args);
}

}  // namespace plimsoll::models
