// The kernel that multiplies, for reports.
#pragma once

#include <string_view>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {

struct GemmKernel {
  std::string_view arithmetic;  // of a multiply-add: "fp32", "bf16 pairs" or "fp16 split"
  runtime::Isa isa;             // the instructions that do it
};

// That of `gemm` on these operands, at the level in force on the calling thread.
GemmKernel gemm_kernel(const GemmOperand& a, const GemmOperand& b, int64_t k);

}  // namespace plimsoll::kernels
