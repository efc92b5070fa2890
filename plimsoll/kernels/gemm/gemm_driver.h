// One driver for every instruction set and format. Private to this folder.
#pragma once

#include "plimsoll/kernels/gemm/gemm_isa.h"
#include "plimsoll/kernels/gemm/gemm_plan.h"

namespace plimsoll::kernels {

// The level in force on the calling thread.
const GemmLevel& chosen_level();

// The dword in which an operand is multiplied; a product of two that differ is FP32's.
Dword dword_of(const GemmOperand& operand, int64_t k, const GemmLevel& level);

// The dword in which these operands are multiplied.
Dword common_dword(const GemmOperand& a, const GemmOperand& b, int64_t k, const GemmLevel& level);

// The dword in which B is packed beforehand: as narrow as the operand, unless scales are folded in.
Dword stored_dword_of(const GemmOperand& b, int64_t k, const GemmLevel& level);

// The amax of the output; 0 where there is none.
float multiply(const Gemm& args, const GemmLevel& level);

// All panels of B, in `layout`.
void pack_all_of_b(const GemmOperand& b, int64_t n, const PackedLayout& layout, const GemmLevel& level,
                   uint32_t* packed);

}  // namespace plimsoll::kernels
