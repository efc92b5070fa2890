// The public entries and the choice of instruction set.
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/gemm/gemm_driver.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {

const GemmIsa& chosen_isa() {
  static const GemmIsa with_pairs = [] {
    GemmIsa isa = kGemmAvx512;
    isa.multiply_pairs = multiply_pairs_avx512_bf16;
    isa.multiply_few_pairs = multiply_few_pairs_avx512_bf16;
    return isa;
  }();
  switch (runtime::matmul_isa()) {
    case runtime::Isa::kPortable:
      return kGemmPortable;
    case runtime::Isa::kAvx2:
      return kGemmAvx2;
    case runtime::Isa::kAvx512:
      return kGemmAvx512;
    case runtime::Isa::kAvx512Bf16:
    case runtime::Isa::kAmx:  // AMX processors have VDPBF16PS too; there is no tile kernel
      return with_pairs;
  }
  return kGemmPortable;
}

namespace {

PackedLayout packed_layout(const GemmOperand& b, int64_t n, int64_t k, const GemmIsa& isa) {
  return {k, divide_up(n, kTileColumns), stored_dword_of(b, k, isa)};
}

}  // namespace

float gemm(const Gemm& args) { return multiply(args, chosen_isa()); }

size_t gemm_packed_b_bytes(const GemmOperand& b, int64_t n, int64_t k) {
  return static_cast<size_t>(packed_layout(b, n, k, chosen_isa()).dwords()) * sizeof(uint32_t);
}

void gemm_pack_b(const GemmOperand& b, int64_t n, int64_t k, void* packed) {
  const GemmIsa& isa = chosen_isa();
  pack_all_of_b(b, n, packed_layout(b, n, k, isa), isa, static_cast<uint32_t*>(packed));
}

double gemm_error_bound(int64_t k, double sum_of_absolute_products, double largest_operand) {
  constexpr double kUnit = 0x1p-24, kSmallestNormal = 0x1p-126;
  const double terms = static_cast<double>(k);
  const double rounding = (terms + kGemmExtraRoundings) * kUnit;
  return rounding / (1 - rounding) * sum_of_absolute_products + (terms + 1) * kSmallestNormal * (1 + largest_operand);
}

}  // namespace plimsoll::kernels
