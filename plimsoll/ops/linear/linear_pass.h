// The steps of one linear layer that linear, norm_linear and norm_mlp have in common.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/linear/operand_maker.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/saved.h"

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

// Values that backward needs of a layer.
struct LinearSaved {
  LinearScaling scaling;
  LinearNeeds needs;
  ScaledTensor input;    // for grad_weight; undefined where it is made again
  ScaleRef input_scale;  // the delayed scale with which it is made again
  ScaledTensor weight;   // for grad_input
  at::ScalarType weight_dtype = at::kFloat;
  at::ScalarType bias_dtype = at::kFloat;

  void exchange(SavedTensors& tensors);
};

// A call from C++: needs from requires_grad, and high precision in the dtype of the weight where no recipe is given.
LinearCall linear_call(const LinearScaling& scaling, bool needs_input, const at::Tensor& weight,
                       const at::Tensor& bias);

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
  kernels::GemmEpilogue epilogue = {};  // without bias, scale and amax
  ScaleRef scale = {};                  // of codes
  AmaxSlot amax = {};                   // where somebody wants it
};
// output = input weight^T + bias through the epilogue. Fills `saved`, but for the input.
void linear_output(const LinearForward& forward, const LinearOutput& output, LinearSaved& saved);

// grad weight [tokens, in].
void input_gradient(const ScaledTensor& grad, const LinearSaved& saved, const OperandMaker& maker,
                    const LinearOutput& output);

// grad^T input [out, in], in the dtype of the weight; undefined where it went to scaling.main_grad.
at::Tensor weight_gradient(const ScaledTensor& grad, const ScaledTensor& input, const LinearSaved& saved,
                           const OperandMaker& maker);

}  // namespace plimsoll::ops
