// Blocks of E2M1 codes and their scales: NVFP4 (16 elements, an E4M3 scale each, one FP32 scale for the tensor) and
// MXFP4 (32 elements, an E8M0 scale each). value = (code * block scale) * tensor scale; the product in brackets is exact
// in BF16. Every operation below is FP32's, rounded once, in this order: kernels give the same bits.
// Sources: NVIDIA, "Pretraining large language models with NVFP4", arXiv 2509.25149; OCP Microscaling v1.0; Cook et al.,
// "Four over six", arXiv 2512.02010; "Quartet II", arXiv 2601.22813 (MS-EDEN); Vargaftik et al., "EDEN", ICML 2022.
#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>
#include <limits>

#include "plimsoll/format/e2m1.h"
#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/fp8.h"

namespace plimsoll::format {

// Rules by which blocks of E2M1 get their scales.
enum class Fp4Scaling : uint8_t {
  kNvfp4,        // the block's amax becomes 6
  kFourOverSix,  // it becomes 6 or 4, whichever leaves the smaller squared error; 6 where both leave the same
  kMsEden,       // it becomes 6 / 0.988, saturating at 6, and scales are corrected for each 128 elements: struct MsEden
  kMxfp4,        // the smallest power of two under which no value exceeds 6
  kMxfp4Floor,   // OCP Microscaling v1.0, 6.3: floor(log2(amax)) - 2; values above 6 saturate
};

constexpr bool is_nvfp4(Fp4Scaling scaling) {
  return scaling == Fp4Scaling::kNvfp4 || scaling == Fp4Scaling::kFourOverSix || scaling == Fp4Scaling::kMsEden;
}
// Elements that share a scale.
constexpr int64_t fp4_block(Fp4Scaling scaling) { return is_nvfp4(scaling) ? 16 : 32; }
// Format of the block scales.
constexpr Format fp4_scale_format(Fp4Scaling scaling) { return is_nvfp4(scaling) ? Format::kE4m3 : Format::kE8m0; }
constexpr float fp4_decode_scale(Fp4Scaling scaling, uint8_t code) {
  return is_nvfp4(scaling) ? E4m3::decode(code) : E8m0::decode(code);
}

// Unbiased codes of randomly rotated groups. Elements are rounded to nearest under `scale`, Nvfp4::block_scale to kTarget;
// what is stored is `scale` times a correction c of its group, rounded stochastically. With y = x * encode_scale and codes
// of value q, c = <y, y> / <|y|, |q| scale>, so that the stored values have, in the mean of the roundings, <x, x> as their
// product with x.
struct MsEden {
  static constexpr int64_t kGroup = 128;
  // 17 / 16 would keep every amax at 6 or below, as scales are rounded down by a 17th at the most; 0.93 of that lets some
  // saturate, by which a group of normal numbers loses least.
  static constexpr double kShare = 17.0 / 16 * 0.93;
  static constexpr float kTarget = static_cast<float>(6.0 / kShare);
  // Times c it stays below 448, since c < 1.25 where no scale is subnormal. In units of `scale`, an element of 0.75 or more
  // has a code of at least 0.8 of it; squares of the block's others exceed 1.25 of their products by 0.1 each at the most,
  // and that of its largest, which lies from 5.7 to 6.5 and has the code 6, stays below by more than 6.
  static constexpr float kLargestScale = 255.99f;

  // 1 for a group whose codes are all zero, or whose sums are not finite.
  static constexpr float correction(float squares, float products) {
    return products > 0.0f && products <= FLT_MAX ? squares / products : 1.0f;
  }

  // The scale that is stored, from that of the codes. Saturates; NaN stays NaN.
  static constexpr E4m3::Code stored_scale(E4m3::Code scale, float correction, uint16_t random_bits) {
    return E4m3::encode_stochastic_16(E4m3::decode(scale) * correction, random_bits);
  }
  static constexpr E4m3::Code nearest_scale(E4m3::Code scale, float correction) {
    return E4m3::encode(E4m3::decode(scale) * correction);
  }
};

struct Nvfp4 {
  static constexpr float kLargest = 6.0f;  // of E2M1
  static constexpr E4m3::Code kNan = 0x7f;

  // Magnitude that a block's amax becomes.
  static constexpr float target(Fp4Scaling scaling) {
    return scaling == Fp4Scaling::kMsEden ? MsEden::kTarget : kLargest;
  }

  // Factor that takes the tensor's amax to its target times the largest scale; 1 for a tensor of zeros, NaN for one whose
  // amax is NaN or Inf. The tensor's scale is 1 / this. Scales to 4 are 1.5 times those to 6: 256 in the place of 448
  // leaves them room.
  static constexpr float encode_scale(float amax, Fp4Scaling scaling) {
    if (!(amax <= FLT_MAX)) return std::numeric_limits<float>::quiet_NaN();
    if (amax == 0.0f) return 1.0f;
    const float largest = largest_scale(scaling) * target(scaling);
    return amax < largest / FLT_MAX ? FLT_MAX : at_most_max(largest / amax);
  }

  // Code of the scale that takes a block's amax to `target`: amax * (encode_scale / target) as E4M3, saturating. NaN
  // for an amax that is NaN or Inf.
  static constexpr E4m3::Code block_scale(float amax, float encode_scale, float target = kLargest) {
    return amax <= FLT_MAX ? E4m3::encode(amax * (encode_scale / target)) : kNan;
  }

  // Factor of the block's values before they are encoded: encode_scale / scale, FLT_MAX where that is larger.
  static constexpr float factor(float encode_scale, E4m3::Code scale) {
    const float decoded = E4m3::decode(scale);
    return decoded == 0.0f ? FLT_MAX : at_most_max(encode_scale / decoded);
  }

 private:
  static constexpr float largest_scale(Fp4Scaling scaling) {
    if (scaling == Fp4Scaling::kMsEden) return MsEden::kLargestScale;
    return scaling == Fp4Scaling::kFourOverSix ? 256.0f : 448.0f;
  }
  static constexpr float at_most_max(float x) { return x > FLT_MAX ? FLT_MAX : x; }
};

struct Mxfp4 {
  // Code of the scale of a block with this amax; 255 (NaN) for one that is NaN or Inf. Values are multiplied with
  // E8m0::decode_inverse of it.
  static constexpr E8m0::Code block_scale(float amax, Fp4Scaling scaling) {
    return E8m0::from_amax(amax, Nvfp4::kLargest,
                           scaling == Fp4Scaling::kMxfp4 ? ScaleRounding::kUp : ScaleRounding::kDown);
  }
};

}  // namespace plimsoll::format
