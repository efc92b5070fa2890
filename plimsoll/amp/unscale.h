// Takes the loss scale off gradients: one pass multiplies, looks for what is not finite and sums the squares.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <limits>

#include "plimsoll/amp/gradient_histogram.h"

namespace plimsoll::amp {

struct UnscaleOptions {
  // Not finite where the loss scale has come down to what has no reciprocal in FP32: then no element counts as finite,
  // and nothing is written.
  float inv_scale = 1;
  double max_norm = std::numeric_limits<double>::infinity();  // finite: clipped to it
  // Clipping needs the norm of all gradients first. Where it is expected, the first pass only reads; where it comes
  // unexpected, what that pass wrote is read and written again.
  bool expect_clip = false;
};

struct UnscaleSummary {
  double grad_norm = 0;           // L2 norm after inv_scale, before clipping; not finite if non_finite > 0
  double clip_factor = 1;         // ops::StepReport
  int64_t non_finite = 0;         // elements
  int64_t first_non_finite = -1;  // index of the first gradient that holds one; -1: none
  GradientHistogram histogram;    // of the gradients as they came
};

// In place. Tensors of fp32, bf16, fp16 or fp64, of any strides, on the CPU or on CUDA devices, with the same bits; sums over several
// devices are added, device by device. Of a sparse one each entry is unscaled and checked by itself, as torch does, and the norm is that
// of the entries' sums, made without the scale on them and in double. Nothing is clipped if something is not finite. The host waits for
// each CUDA device once, and again for each sparse or fp64 gradient there. Throws c10::Error.
UnscaleSummary unscale_gradients_(at::TensorList grads, const UnscaleOptions& options);

}  // namespace plimsoll::amp
