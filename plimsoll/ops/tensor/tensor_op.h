// torch.ops.plimsoll.{quantize, quantize_blocks, dequantize, amax, column_sum, transpose, gemm, scaled_gemm}: schemas,
// kernels for CPUs and CUDA devices, for Meta, and calls through the dispatcher.
#pragma once

#include <torch/library.h>

#include <optional>
#include <string_view>

namespace plimsoll::ops {

void define_tensor(torch::Library& library);
void register_tensor(torch::Library& library);
void register_tensor_meta(torch::Library& library);

namespace dispatch {

// A product of plain values; kind: "output", "grad_input" or "grad_weight".
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias, std::string_view kind,
                at::ScalarType dtype);
at::Tensor column_sum(const at::Tensor& x);

}  // namespace dispatch
}  // namespace plimsoll::ops
