// Arithmetic of a softmax on one element, for hosts and CUDA devices.
#pragma once

#include "plimsoll/kernels/element_math.h"

namespace plimsoll::kernels {

// The larger; NaN is passed over.
PLIMSOLL_HD inline float larger_logit(float x, float top) { return x > top ? x : top; }

}  // namespace plimsoll::kernels
