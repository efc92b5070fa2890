// The public entries and the choice of instruction set.
#include <algorithm>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/gemm/gemm_driver.h"
#include "plimsoll/kernels/gemm/gemm_kernel.h"
#include "plimsoll/kernels/gemm/gemm_packed.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::kernels {

static_assert(kPackedColumns == kTileColumns);

namespace {

// AVX-512's packing and epilogue.
GemmIsa avx512_bf16_pairs() {
  GemmIsa isa = kGemmAvx512;
  isa.tiling = &GemmTilings::pairs;
  isa.multiply = multiply_pairs_avx512_bf16;
  isa.multiply_few = multiply_few_pairs_avx512_bf16;
  isa.multiply_few_columns = multiply_few_columns_avx512_bf16;
  return isa;
}

// Few rows take tiles, too: another kernel would sum in another order, and a row's bits would depend on its batch.
GemmIsa amx_pairs() {
  GemmIsa isa = kGemmAvx512;
  isa.panel_rows = 32;
  isa.few_rows = 0;
  isa.tiling = &GemmTilings::tiles;
  isa.a_pitch = 32;
  isa.a_step = 16;
  isa.thread_grain = 16 * kThreadGrain;  // TDPBF16PS did 15 times the FP32 multiply-adds of the machine it was tried on
  isa.enter = load_tiles_amx;
  isa.leave = release_tiles_amx;
  isa.pack_a = pack_a_tiles_avx512;
  isa.multiply = multiply_pairs_amx;
  isa.multiply_few = nullptr;
  isa.multiply_few_columns = nullptr;
  return isa;
}

GemmIsa amx_split() {
  GemmIsa isa = amx_pairs();
  isa.tiling = &GemmTilings::split;
  isa.a_pitch = 64;
  isa.thread_grain /= 4;
  isa.pack_b = pack_b_split_avx512;
  isa.multiply = multiply_split_amx;
  return isa;
}

PackedLayout packed_layout(const GemmOperand& b, int64_t n, int64_t k) {
  return {k, divide_up(n, kTileColumns), stored_dword_of(b, k, chosen_level())};
}

}  // namespace

const GemmLevel& chosen_level() {
  static const GemmIsa pairs = avx512_bf16_pairs(), tiled_pairs = amx_pairs(), tiled_split = amx_split();
  static const GemmLevel portable = {&kGemmPortable}, avx2 = {&kGemmAvx2}, avx512 = {&kGemmAvx512},
                         avx512_bf16 = {&kGemmAvx512, &pairs}, amx = {&kGemmAvx512, &tiled_pairs, &tiled_split};
  switch (runtime::matmul_isa()) {
    case runtime::Isa::kPortable:
      return portable;
    case runtime::Isa::kAvx2:
      return avx2;
    case runtime::Isa::kAvx512:
      return avx512;
    case runtime::Isa::kAvx512Bf16:
      return avx512_bf16;
    case runtime::Isa::kAmx:
      return amx;
  }
  runtime::unexpected("gemm: instruction set", static_cast<int>(runtime::matmul_isa()));
}

void gemm(const Gemm& args) {
  const float amax = multiply(args, chosen_level());
  if (args.epilogue.amax != nullptr) *args.epilogue.amax = amax;
}

GemmKernel gemm_kernel(const GemmOperand& a, const GemmOperand& b, int64_t k) {
  const runtime::Isa isa = runtime::matmul_isa();
  const Dword dword = common_dword(a, b, k, chosen_level());
  switch (dword) {
    case Dword::kBf16Pair:
      return {"bf16 pairs", isa};
    case Dword::kFp16Split:
      return {"fp16 split", isa};
    case Dword::kFp32:
      return {"fp32", std::min(isa, runtime::Isa::kAvx512)};
    case Dword::kFp16Pair:
    case Dword::kE4m3Quad:
    case Dword::kE5m2Quad:
    case Dword::kE4m3Blocks:
    case Dword::kNvfp4Octet:
    case Dword::kMxfp4Octet:
      break;  // stored, not multiplied
  }
  runtime::unexpected("gemm: dword", static_cast<int>(dword));
}

size_t gemm_packed_b_bytes(const GemmOperand& b, int64_t n, int64_t k) {
  return static_cast<size_t>(packed_layout(b, n, k).dwords()) * sizeof(uint32_t);
}

void gemm_pack_b(const GemmOperand& b, int64_t n, int64_t k, void* packed) {
  pack_all_of_b(b, n, packed_layout(b, n, k), chosen_level(), static_cast<uint32_t*>(packed));
}

const void* gemm_packed_from(const void* packed, const GemmOperand& b, int64_t k, int64_t column) {
  const PackedLayout layout = packed_layout(b, column, k);
  return static_cast<const uint32_t*>(packed) + layout.offset(0, column / kPackedColumns);
}

bool gemm_reads_in_place(const GemmOperand& b) {
  const GemmLevel& level = chosen_level();
  const GemmIsa* isa = b.format == format::Format::kFp32   ? level.fp32
                       : b.format == format::Format::kBf16 ? level.bf16_pair
                                                           : nullptr;
  return isa != nullptr && isa->multiply_few_columns != nullptr && b.k_stride == 1;
}

double gemm_error_bound(int64_t k, double sum_of_absolute_products, double largest_operand) {
  constexpr double kUnit = 0x1p-24, kSmallestNormal = 0x1p-126;
  const double terms = static_cast<double>(k);
  const double rounding = (terms + kGemmExtraRoundings) * kUnit;
  return rounding / (1 - rounding) * sum_of_absolute_products +
         2 * (terms + 1) * kSmallestNormal * (1 + largest_operand);
}

}  // namespace plimsoll::kernels
