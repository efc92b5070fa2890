// Magnitudes of the elements of gradient tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/amp/gradient_histogram.h"

namespace plimsoll::amp {

// The histogram of about 2^16 sampled elements, or of all if there are fewer; equal sizes have equal places. Tensors
// as for unscale_gradients_.
GradientHistogram gradient_histogram(at::TensorList grads);

}  // namespace plimsoll::amp
