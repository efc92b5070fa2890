// The steps of one linear layer that linear, norm_linear and norm_mlp have in common.
#pragma once

#include <ATen/core/TensorBody.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "plimsoll/ops/gemm.h"
#include "plimsoll/ops/linear_scaling.h"
#include "plimsoll/ops/operand_maker.h"
#include "plimsoll/ops/saved.h"

namespace plimsoll::ops {

// Gradients that backward will be asked for.
struct LinearNeeds {
  bool input = false;
  bool weight = false;
  bool bias = false;
};

struct LinearCall {
  LinearScaling scaling;  // recipe set
  LinearNeeds needs = {};
  bool record = false;  // grad mode of the caller: amaxes count
};

// What backward needs of a layer.
struct LinearSaved {
  LinearScaling scaling;
  LinearNeeds needs;
  ScaledTensor input;                // for grad_weight; undefined where it is made again
  std::optional<float> input_scale;  // the delayed scale with which it is made again
  ScaledTensor weight;               // for grad_input
  at::ScalarType weight_dtype = at::kFloat;
  at::ScalarType bias_dtype = at::kFloat;

  void exchange(SavedTensors& tensors);
};

// `op` and `layer` ("", "fc1 ") name the tensors in errors.
struct LinearNames {
  const char* op;
  const char* layer;
};
void check_linear(const LinearNames& names, int64_t in, const at::Tensor& weight, const at::Tensor& bias);

// A call from C++: needs from requires_grad, and high precision in the dtype of the weight where no recipe is given.
LinearCall linear_call(const LinearScaling& scaling, bool needs_input, const at::Tensor& weight,
                       const at::Tensor& bias);

bool requires_grad(const at::Tensor& tensor);  // false if undefined

struct LinearForward {
  const ScaledTensor& input;  // for the product `output`
  const at::Tensor& weight;
  const at::Tensor& bias;  // or undefined
  const LinearCall& call;
  OperandMaker& maker;
};
struct LinearOutput {
  const at::Tensor& tensor;  // kByte: codes
  format::Format format;
  kernels::GemmEpilogue epilogue = {};  // without the bias
};
// output = input weight^T + bias through the epilogue. Fills `saved`, but for the input. Returns the amax.
float linear_output(const LinearForward& forward, const LinearOutput& output, LinearSaved& saved);

// grad weight [tokens, in].
float input_gradient(const ScaledTensor& grad, const LinearSaved& saved, const OperandMaker& maker,
                     const LinearOutput& output);

// grad^T input [out, in], in the dtype of the weight; undefined where it went to scaling.main_grad.
at::Tensor weight_gradient(const ScaledTensor& grad, const ScaledTensor& input, const LinearSaved& saved,
                           const OperandMaker& maker);

// Undefined stays undefined.
at::Tensor as_fp32(const at::Tensor& vector);
const float* data_or_null(const at::Tensor& fp32);
std::optional<at::Tensor> optional(const at::Tensor& tensor);

// Uninitialised, with the leading dimensions of `sizes`.
at::Tensor empty_rows(at::IntArrayRef sizes, int64_t cols, at::ScalarType dtype);

// Double backward would silently be wrong.
void check_once_differentiable(const char* op);

}  // namespace plimsoll::ops
