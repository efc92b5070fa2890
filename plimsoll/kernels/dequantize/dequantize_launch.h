// Kernels of dequantize.cu and how they are launched. dequantize_C_Y has C, the format of the codes, and Y, that of the output, in
// its name, and takes the arguments of dequantize.h, whose pointers are the device's.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/dequantize/dequantize.h"

namespace plimsoll::kernels {

inline constexpr int kDequantizeThreads = 256;
inline constexpr int kDequantizeRun = 8;  // elements of a thread: 16 bytes of a 16-bit format
inline constexpr int kDequantizeTile = kDequantizeThreads * kDequantizeRun;

constexpr Launch dequantize_launch(const Dequantize& args, int multiprocessors) {
  return launch_over(args.rows * pieces_of(args.cols, kDequantizeTile), kDequantizeThreads, multiprocessors);
}

}  // namespace plimsoll::kernels
