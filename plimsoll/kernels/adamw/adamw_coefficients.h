// Coefficients of an AdamW step, computed in double once, and what the step makes of one element, for hosts and CUDA devices.
// Private to this folder.
#pragma once

#include <cmath>

#include "plimsoll/format/host_device.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels {

struct AdamWCoefficients {
  float decay;  // 1 - lr * weight_decay
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;             // lr / (1 - beta1^step)
  float inv_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float grad_scale;
  float l2;
  runtime::RoundingKeys keys;
};

inline AdamWCoefficients adamw_coefficients(const AdamW& args) {
  const double step = static_cast<double>(args.step);
  return {
      .decay = static_cast<float>(1 - args.lr * args.weight_decay),
      .beta1 = static_cast<float>(args.beta1),
      .one_minus_beta1 = static_cast<float>(1 - args.beta1),
      .beta2 = static_cast<float>(args.beta2),
      .one_minus_beta2 = static_cast<float>(1 - args.beta2),
      .step_size = static_cast<float>(args.lr / (1 - std::pow(args.beta1, step))),
      .inv_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, step))),
      .eps = static_cast<float>(args.eps),
      .grad_scale = args.grad_scale,
      .l2 = static_cast<float>(args.l2),
      .keys = {},
  };
}

struct AdamWElement {
  float weight, moment1, moment2;
};

// adamw.h's formulas in the order in which its loops compute them.
PLIMSOLL_HD inline AdamWElement adamw_step(const AdamWCoefficients& c, const AdamWElement& before, float grad) {
  float g = grad * c.grad_scale;
  if (c.l2 != 0) g = fmaf(c.l2, before.weight, g);
  const float moment2 = fmaf(c.beta2, before.moment2, c.one_minus_beta2 * g * g);
  const float moment1 = fmaf(c.beta1, before.moment1, c.one_minus_beta1 * g);
  const float change = moment1 / fmaf(sqrtf(moment2), c.inv_sqrt_correction2, c.eps);
  return {fmaf(-c.step_size, change, before.weight * c.decay), moment1, moment2};
}

}  // namespace plimsoll::kernels
