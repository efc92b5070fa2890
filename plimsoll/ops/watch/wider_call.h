// One of torch's operators, run again in FP32. For the watch's own use.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

namespace c10 {
struct OperatorName;
}

namespace plimsoll::ops {

using Values = std::vector<c10::IValue>;

// The defined tensors among values and their lists.
std::vector<at::Tensor> tensors_of(const Values& values);

// fp32, bf16 or fp16.
bool is_real(const at::Tensor& tensor);

// FP32 values for those of a tensor that is_real.
using Widen = std::function<at::Tensor(const at::Tensor&)>;

// The results of the operator on arguments of which each tensor that is_real is widened, and with FP32 for a narrow
// dtype that it is asked for. Changes no operand and no generator. Empty where it draws random numbers, is more than a
// function of its arguments or refuses.
Values run_wider(const c10::OperatorName& name, const Values& arguments, const Widen& widen);

}  // namespace plimsoll::ops
