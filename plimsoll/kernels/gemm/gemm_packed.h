// Parts of a B that gemm_pack_b has packed, and where packing does no good.
#pragma once

#include "plimsoll/kernels/gemm/gemm.h"

namespace plimsoll::kernels {

// Columns that are packed together.
inline constexpr int64_t kPackedColumns = 32;

// The columns from `column` on, a multiple of kPackedColumns: the packed_b of a product whose n and scale begin there.
const void* gemm_packed_from(const void* packed, const GemmOperand& b, int64_t k, int64_t column);

// Whether few rows of its format multiply b, not packed, about as fast as packed.
bool gemm_reads_in_place(const GemmOperand& b);

}  // namespace plimsoll::kernels
