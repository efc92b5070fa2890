// Sample of gradients, whose magnitudes are counted by powers of two on a CUDA device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plimsoll/kernels/gradient/gradient.h"

namespace plimsoll::kernels {

inline constexpr int kGradientSampleRun = 64;  // elements side by side, four cache lines of FP32
inline constexpr int kGradientBins = 256;

// Adds to counts[e] the elements of 2^(e - 127) <= |x| < 2^(e - 126), and to counts[0] the subnormals of FP32, of one run of
// kGradientSampleRun elements of each `stride` runs of a tensor. Zeros and what is not finite are left out.
struct GradientSample {
  const GradientTensor* tensors = nullptr;  // [tensor_count]
  size_t tensor_count = 0;
  int64_t stride = 1;
  int32_t* counts = nullptr;  // [kGradientBins], of the device
};

}  // namespace plimsoll::kernels
