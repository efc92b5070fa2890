// The three products of a linear layer on ScaledTensors: input [tokens, in], weight [out, in], grad_output [tokens,
// out], each as it is stored.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/recipe/operand.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::ops {

// One tensor as each product that it takes part in reads it. Those that are not wanted stay undefined; equal ones share
// storage.
struct Operands {
  ScaledTensor output;
  ScaledTensor grad_input;
  ScaledTensor grad_weight;

  ScaledTensor& of(recipe::GemmKind gemm) {
    return gemm == recipe::GemmKind::kOutput ? output : gemm == recipe::GemmKind::kGradInput ? grad_input : grad_weight;
  }
};

// A weight in the layout that the GEMM reads fastest; of use only to the ISA that packed it.
struct PackedWeight {
  at::Tensor data;
  runtime::Isa isa = runtime::Isa::kPortable;
};

struct Product {
  recipe::GemmKind kind = recipe::GemmKind::kOutput;
  const ScaledTensor& a;                 // input, grad_output, grad_output
  const ScaledTensor& b;                 // weight, weight, input
  kernels::GemmEpilogue epilogue = {};   // without scale and amax
  ScaleRef scale = {};                   // of the output, where it is codes
  AmaxSlot amax = {};                    // of the output before it is encoded, where somebody wants it
  at::Tensor narrow_bias = {};           // on a device: what epilogue.bias was made of, where that is bf16 or fp16
  const PackedWeight* packed = nullptr;  // of b, kOutput only
};

// Writes the product [m, n] to `output`, contiguous and of any shape with that many elements: its dtype says the
// format, kByte means `codes`.
void multiply(const Product& product, const at::Tensor& output, format::Format codes = format::Format::kE4m3);

PackedWeight pack_weight(const ScaledTensor& weight);
// Whether few rows of its dtype multiply the weight, not packed, about as fast as packed.
bool is_read_in_place(const ScaledTensor& weight);

}  // namespace plimsoll::ops
