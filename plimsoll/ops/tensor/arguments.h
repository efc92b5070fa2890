// Checks and conversions of tensor arguments before and after the kernels.
#pragma once

#include <ATen/core/TensorBody.h>

#include <initializer_list>
#include <optional>

namespace plimsoll::ops {

// Whether a tensor has no memory of its own, such as autoscale's scaled ones: its owner says what each operator gives.
inline bool is_opaque(const at::Tensor& x) { return x.defined() && !x.has_storage(); }

bool requires_grad(const at::Tensor& tensor);  // false if undefined

// Undefined stays undefined.
at::Tensor as_fp32(const at::Tensor& vector);
const float* data_or_null(const at::Tensor& fp32);
std::optional<at::Tensor> optional(const at::Tensor& tensor);

// Uninitialised, with the leading dimensions of `sizes`.
at::Tensor empty_rows(at::IntArrayRef sizes, int64_t cols, const at::TensorOptions& options);

// A tensor of these sizes; an error that names op and tensor otherwise.
void check_sizes(const at::Tensor& tensor, at::IntArrayRef sizes, const char* op, const char* name);

// The op and the layer ("", "fc1 ") as errors name them.
struct LinearNames {
  const char* op;
  const char* layer;
};
// weight [out, in] and bias [out] or undefined, of values and on the device of x; an error otherwise.
void check_linear(const LinearNames& names, const at::Tensor& x, int64_t in, const at::Tensor& weight,
                  const at::Tensor& bias);

// Another tensor, or an undefined one, on the device of x; an error that names op and tensor otherwise.
void check_same_device(const at::Tensor& x, const at::Tensor& other, const char* op, const char* name);

// A tensor, or none: an undefined one, or an empty optional.
struct OptionalOperand {
  OptionalOperand(const at::Tensor& given) : tensor(&given) {}
  OptionalOperand(const std::optional<at::Tensor>& given) : tensor(given ? &*given : nullptr) {}
  const at::Tensor* tensor;
};
// Operands on the device of the first; an error otherwise. Every Meta kernel of several operands calls this: one operand
// on "meta" is enough for torch's dispatcher to choose it, and its results, on another's device, would have no values.
void check_one_device(const char* op, std::initializer_list<OptionalOperand> operands);

// Double backward would silently be wrong.
void check_once_differentiable(const char* op);

}  // namespace plimsoll::ops
