// Kernels of adamw.cu and how they are launched. adamw_G has G, the format of the gradient, in its name. It takes the arguments of
// adamw.h, whose pointers are the device's, the coefficients (adamw_coefficients), and one float that it raises to the amax of the new
// weights, which the caller clears before. Moments are FP32, weights FP32 with or without a narrow copy: no other kind has a kernel.
#pragma once

#include "plimsoll/kernels/adamw/adamw_coefficients.h"
#include "plimsoll/kernels/cuda/launch.h"

namespace plimsoll::kernels {

inline constexpr int kAdamWThreads = 256;
inline constexpr int kAdamWRun = 4;  // elements of a thread: 16 bytes of FP32

constexpr Launch adamw_launch(const AdamW& args, int multiprocessors) {
  return launch_over(pieces_of(args.count, kAdamWThreads * kAdamWRun), kAdamWThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
