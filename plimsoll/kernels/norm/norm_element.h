// Arithmetic of a norm on one element and one row, for hosts and CUDA devices.
#pragma once

#include <cmath>

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// A variance that overflows (values beyond 1e19) gives NaN, which is seen, instead of a row of zeros.
PLIMSOLL_HD inline float rstd_of_variance(float variance, float epsilon) {
  return 1.0f / sqrtf(variance + epsilon) + (variance - variance);
}

PLIMSOLL_HD inline float normalized(float x, float mean, float rstd, float gain) { return (x - mean) * rstd * gain; }
PLIMSOLL_HD inline float normalized(float x, float mean, float rstd, float gain, float bias) {
  return fmaf((x - mean) * rstd, gain, bias);
}

}  // namespace plimsoll::kernels
