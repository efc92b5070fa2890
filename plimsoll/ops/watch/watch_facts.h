// Facts about tensors for a watch::Incident. For the watch's own use: nothing here is seen by observers of operators.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>

#include "plimsoll/watch/incidents.h"

namespace plimsoll::ops {

// Whether the memory of a strided tensor has been given back, as that of sharded parameters is while nobody reads them.
bool is_freed(const at::Tensor& tensor);

// Whether it has elements of fp32, bf16 or fp16 in the memory of the CPU.
bool has_values(const at::Tensor& tensor);

// NaN > Inf > finite; 0 of a tensor without such values.
float amax_of_any(const at::Tensor& tensor);

watch::TensorFacts facts_of(std::string name, const at::Tensor& tensor);

// Fills where the first element of `result` is that is not finite, and how many there are. False if all are.
bool find_bad(const at::Tensor& result, watch::Incident& incident);

// The element of `tensor` where the first bad one of an equally large result is.
double element_at(const at::Tensor& tensor, const watch::Incident& incident);

// exact: the FP32 values that `result` was rounded from.
watch::Replay compare(const at::Tensor& exact, const at::Tensor& result);

// Harm that an op did with operands that were not finite. operands, result: the amaxes of all operands, and of the
// result.
watch::Harm harm_of(float operands, float result);

}  // namespace plimsoll::ops
