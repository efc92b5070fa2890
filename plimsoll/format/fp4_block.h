// Blocks of E2M1 codes and their scales: NVFP4 (16 elements, an E4M3 scale each, one FP32 scale for the tensor) and
// MXFP4 (32 elements, an E8M0 scale each). value = (code * block scale) * tensor scale; the product in brackets is exact
// in BF16. Every operation below is FP32's, rounded once, in this order: kernels give the same bits.
// Sources: NVIDIA, "Pretraining large language models with NVFP4", arXiv 2509.25149; OCP Microscaling v1.0; Cook et al.,
// "Four over six", arXiv 2512.02010.
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
  kMxfp4,        // the smallest power of two under which no value exceeds 6
  kMxfp4Floor,   // OCP Microscaling v1.0, 6.3: floor(log2(amax)) - 2; values above 6 saturate
};

constexpr bool is_nvfp4(Fp4Scaling scaling) {
  return scaling == Fp4Scaling::kNvfp4 || scaling == Fp4Scaling::kFourOverSix;
}
// Elements that share a scale.
constexpr int64_t fp4_block(Fp4Scaling scaling) { return is_nvfp4(scaling) ? 16 : 32; }
// Format of the block scales.
constexpr Format fp4_scale_format(Fp4Scaling scaling) { return is_nvfp4(scaling) ? Format::kE4m3 : Format::kE8m0; }
constexpr float fp4_decode_scale(Fp4Scaling scaling, uint8_t code) {
  return is_nvfp4(scaling) ? E4m3::decode(code) : E8m0::decode(code);
}

struct Nvfp4 {
  static constexpr float kLargest = 6.0f;  // of E2M1
  static constexpr E4m3::Code kNan = 0x7f;

  // Factor that takes the tensor's amax to the largest code times the largest scale; 1 for a tensor of zeros, NaN for
  // one whose amax is NaN or Inf. The tensor's scale is 1 / this. Scales to 4 are 1.5 times those to 6: 256 in the place
  // of 448 leaves them room.
  static constexpr float encode_scale(float amax, Fp4Scaling scaling) {
    if (!(amax <= FLT_MAX)) return std::numeric_limits<float>::quiet_NaN();
    if (amax == 0.0f) return 1.0f;
    const float largest = (scaling == Fp4Scaling::kFourOverSix ? 256.0f : 448.0f) * kLargest;
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
