// output[m, n] = epilogue(sum over k of A[m, k] * B[n, k]), FP32 accumulation, for any pair of formats, layout and
// scale granularity. The three GEMMs of a linear layer, x [tokens, in], weight [out, in], grad [tokens, out], differ
// only in the strides:
//   output      = x * weight^T          A = x,      B = weight        (NT: both k-contiguous)
//   grad_input  = grad * weight         A = grad,   B = weight^T      (NN: B is n-contiguous)
//   grad_weight = grad^T * x            A = grad^T, B = x^T           (TN: both k-strided)
// Transposes are folded into packing; none is stored. Numerics: docs/numerics.md, "gemm".
//
// Scales: those constant along k (per tensor, per row) multiply the sum in the epilogue; those that vary along k are
// folded into the decoded operand, exactly for E8M0, with one FP32 rounding for FP32 scales (such an operand is
// multiplied in FP32 on every ISA). Block scales of E2M1 codes are always folded in, exactly, and the product is that of
// the BF16 values, bit for bit; the epilogue applies the tensor scale. Those of the epilogue multiply one after the other, each product rounded to 24 bits
// whatever its exponent: a result that FP32 holds is finite, and normal where it can be, however far from 1 each scale
// is. A NaN scale makes its block NaN.
//
// Bits: each output is summed in an order of k that depends on the formats and the instruction set alone: not on thread
// count, on M or N blocking, or on the batch. They may differ between ISAs, within |error| <= gemm_error_bound() of the
// exact sum. Any m, n, k >= 0; k = 0 gives epilogue(0).
#pragma once

#include <cstddef>
#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/scale_view.h"

namespace plimsoll::kernels {

// A logical [rows, k] matrix: rows = m for A, n for B. Exactly one of the strides is 1 (both may be, for a vector).
struct GemmOperand {
  const void* data = nullptr;
  // fp32, fp16, bf16, e4m3, e5m2; e2m1: two codes a byte, k_stride 1, an even row_stride, a scale of blocks of 16 or 32 k
  format::Format format = format::Format::kFp32;
  int64_t row_stride = 0;  // elements from (row, k) to (row + 1, k)
  int64_t k_stride = 1;    // elements from (row, k) to (row, k + 1)
  ScaleView scale = {};    // of codes; blocks are [block_rows, block_k] in this logical matrix
};

enum class GemmActivation : uint8_t {
  kNone,
  kGelu,   // output = gelu_tanh(pre); if `aux` is set, pre goes there and counts as rounded to its format
  kDGelu,  // output = acc * gelu_tanh'(aux), aux read
};

struct GemmEpilogue {
  // acc -> alpha * acc * scales(A, B) -> + bias -> activation -> (+ output if accumulate) -> * (1 / scale) -> encode
  float alpha = 1.0f;
  const float* bias = nullptr;  // [n]
  GemmActivation activation = GemmActivation::kNone;
  void* aux = nullptr;  // [m, n], row stride aux_stride
  format::Format aux_format = format::Format::kBf16;
  int64_t aux_stride = 0;
  float* column_sum =
      nullptr;  // [n]: sum over m of the value before encoding (dbias); overwritten; same bits for any thread count
  bool accumulate = false;       // to an fp32, fp16 or bf16 output; the sum is rounded once
  const float* scale = nullptr;  // of an FP8 output: codes = encode(value * (1 / *scale)), saturating; nullptr or 0: 1
  // The amax of the values before they are scaled: NaN > Inf > finite; 0 for an empty output. Overwritten; optional.
  float* amax = nullptr;
};

struct Gemm {
  GemmOperand a = {};
  GemmOperand b = {};
  int64_t m = 0, n = 0, k = 0;
  void* output = nullptr;                                // [m, n]
  format::Format output_format = format::Format::kFp32;  // fp32, fp16, bf16, e4m3, e5m2
  int64_t output_stride = 0;
  GemmEpilogue epilogue = {};
  const void* packed_b = nullptr;  // from gemm_pack_b with the same b, n, k; then b.data is not read
};

void gemm(const Gemm& args);

// Products of the same shape, formats, scales and epilogue, such as [batch, m, k] x [batch, k, n]: product i reads and
// writes i * step elements further. Bits are those of `gemm` on each.
struct BatchedGemm {
  Gemm first = {};  // neither aux nor column_sum, which are of one product; no e2m1
  int64_t batch = 0;
  int64_t a_step = 0, b_step = 0, output_step = 0;  // elements; 0: the same for all. packed_b: for all
};

// The amax is the largest of all products.
void gemm_batched(const BatchedGemm& args);

// Packs B once for many products (weights): as many bytes as B has, rounded up to 32 columns, but four a value for FP16
// with AMX and for E5M2 codes whose scales vary along k, which are packed in, and E4M3 codes with such E8M0 scales, two with an
// instruction for BF16 (other scales are read from b.scale by each `gemm`). E2M1 codes, and E4M3 codes with FP32 scales of blocks of a multiple of 64 k, are packed with their
// block scales, k rounded up to 64. The layout belongs to the ISA in force; `gemm` called under another ISA must not get it. 64-byte alignment is faster.
size_t gemm_packed_b_bytes(const GemmOperand& b, int64_t n, int64_t k);
void gemm_pack_b(const GemmOperand& b, int64_t n, int64_t k, void* packed);

// |gemm - exact| for one output before rounding to output_format, bias and activation aside, given the sum over k of
// |scale A| * |scale B| and the largest |A| or |B|: k roundings of unit 2^-24 for the sum, one for each FP32 scale
// folded in or applied and for alpha, and what is lost where subnormal operands and sums are taken as zero (VDPBF16PS,
// TDPBF16PS).
inline constexpr int kGemmExtraRoundings = 6;
double gemm_error_bound(int64_t k, double sum_of_absolute_products, double largest_operand = 1.0);

}  // namespace plimsoll::kernels
