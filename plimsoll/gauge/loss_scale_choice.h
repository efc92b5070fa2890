// Choice of the loss scale that FP16 gradients need, by their measured error.
#pragma once

#include <functional>
#include <vector>

namespace plimsoll::gauge {

struct LossScaleTrial {
  double loss_scale = 1;
  double error = 0;  // of the gradients; infinite where one is not finite
};

struct LossScaleChoice {
  double loss_scale = 1;
  double error = 0;
  std::vector<LossScaleTrial> trials;  // by growing scale
};

// The smallest of 1, 4, 16, ... up to 2^16 and `most`, of which the error is at most a quarter above the least of all: a
// scale of 1 is none. error: as a function of the loss scale; NaN where gradients are not finite.
LossScaleChoice choose_loss_scale(const std::function<double(double)>& error, double most);

}  // namespace plimsoll::gauge
