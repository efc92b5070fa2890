// Magnitudes of the elements of gradient tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "plimsoll/amp/gradient_histogram.h"

namespace plimsoll::amp {

// Sample of about 2^16 elements, or of all if there are fewer; equal sizes have equal places. Tensors as for
// unscale_gradients_. Those on CUDA devices are counted there, by kernels that are queued before what the caller queues next.
class GradientSample {
 public:
  explicit GradientSample(at::TensorList grads);

  // Counts on CUDA devices, which the caller copies to the host (ops::read_together).
  const std::vector<at::Tensor>& device_counts() const { return device_counts_; }
  // The histogram with those copies.
  GradientHistogram histogram(at::TensorList host_counts) const;

 private:
  GradientHistogram histogram_;  // of what is on the CPU
  std::vector<at::Tensor> device_counts_;
};

// The histogram of such a sample.
GradientHistogram gradient_histogram(at::TensorList grads);

}  // namespace plimsoll::amp
