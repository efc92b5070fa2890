// The loop of a step on one instruction set, and the coefficients of the step. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/adam16/adam16.h"

namespace plimsoll::kernels {

struct Adam16Coefficients {
  float decay;  // 1 - lr * weight_decay
  float l2;
  float beta1, one_minus_beta1;  // the latter with the sign of the gradient
  float beta2, one_minus_beta2;
  float step_size;             // lr / (1 - beta1^step)
  float inv_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float eps;
};

struct Adam16Loops {
  // One thread's part.
  void (*part)(const Adam16& part, const Adam16Coefficients& coefficients);
};

extern const Adam16Loops kAdam16LoopsPortable, kAdam16LoopsAvx2, kAdam16LoopsAvx512;

}  // namespace plimsoll::kernels
