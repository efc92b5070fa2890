// Quantization of one operand of one matrix product. Every recipe answers in these terms, so that ops/ needs to know no
// recipe by name.
#pragma once

#include <array>
#include <cstdint>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/format.h"
#include "plimsoll/format/fp4_block.h"

namespace plimsoll::recipe {

using format::Format;
using format::ScaleRounding;

// The tensors of a linear layer that enter matrix products: input [tokens, in], weight [out, in], grad_output [tokens,
// out].
enum class Role : uint8_t { kInput, kWeight, kGradOutput };

// output = input * weight^T (fprop); grad_input = grad_output * weight (dgrad); grad_weight = grad_output^T * input
// (wgrad).
enum class GemmKind : uint8_t { kOutput, kGradInput, kGradWeight };
inline constexpr std::array kGemmKinds = {GemmKind::kOutput, GemmKind::kGradInput, GemmKind::kGradWeight};

enum class ScaleSource : uint8_t {
  kNone,     // no scale: the operand stays in a high-precision format
  kDelayed,  // the amax history of this operand; known before the operand is
  kCurrent,  // the operand's own amax
};

// Extent of the part of a matrix that shares one scale; 0 means the whole extent, as in kernels::ScaleView.
struct Granularity {
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  friend constexpr bool operator==(const Granularity&, const Granularity&) = default;
};

inline constexpr Granularity kPerTensor{0, 0};
inline constexpr Granularity kPerRow{1, 0};
inline constexpr Granularity kBlock1x128{1, 128};
inline constexpr Granularity kBlock128x128{128, 128};
inline constexpr Granularity kMxBlock{1, 32};
inline constexpr Granularity kNvfp4Block{1, 16};
inline constexpr Granularity kNvfp4Square{16, 16};

struct OperandRecipe {
  Format format = Format::kFp32;  // of the codes, or of the operand itself if source is kNone
  ScaleSource source = ScaleSource::kNone;
  // Blocks of the logical matrix [rows, reduction] that enters the product, so block_cols runs along the reduction.
  Granularity granularity = {};
  Format scale_format = Format::kFp32;  // kFp32 or kE8m0; E4M3 of NVFP4 blocks
  bool power_of_two = false;            // FP32 scales that are powers of two
  ScaleRounding rounding = ScaleRounding::kUp;
  int margin = 0;  // bits kept free above the amax (kDelayed)
  // E2M1 codes alone. Scales of blocks, and of the tensor, follow from `scaling`.
  format::Fp4Scaling scaling = format::Fp4Scaling::kNvfp4;
  int64_t rotation = 0;     // elements along the reduction that a random Hadamard matrix mixes first; 0: none
  bool stochastic = false;  // rounding: of elements, under MS-EDEN of scales
  // Codes are those of the stored tensor's transpose: two lie in a byte, neighbours along the reduction.
  bool turned = false;

  friend constexpr bool operator==(const OperandRecipe&, const OperandRecipe&) = default;
};

// Whether signs of a rotation, or stochastic rounding, are drawn for the operand.
constexpr bool is_random(const OperandRecipe& operand) { return operand.rotation > 0 || operand.stochastic; }

// True if the operand has a part in that product.
constexpr bool takes_part(Role role, GemmKind gemm) {
  switch (gemm) {
    case GemmKind::kOutput:
      return role != Role::kGradOutput;
    case GemmKind::kGradInput:
      return role != Role::kInput;
    case GemmKind::kGradWeight:
      return role != Role::kWeight;
  }
  return false;
}

// True if the product reduces over the rows of the tensor as it is stored, so that its logical matrix is the transpose.
constexpr bool reduces_over_rows(Role role, GemmKind gemm) {
  return gemm == GemmKind::kGradWeight || (role == Role::kWeight && gemm == GemmKind::kGradInput);
}

// The granularity in the tensor as it is stored.
constexpr Granularity stored_granularity(Granularity logical, Role role, GemmKind gemm) {
  return reduces_over_rows(role, gemm) ? Granularity{logical.block_cols, logical.block_rows} : logical;
}

}  // namespace plimsoll::recipe
