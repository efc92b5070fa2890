// The residual stream of a T5 and the norms that read it.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/models/t5/fixes.h"
#include "plimsoll/models/t5/weight.h"

namespace plimsoll::models {

// Residual stream. The output of a sub-layer is added when the next norm reads the stream, in one pass.
class T5Residual {
 public:
  struct Options {
    T5Numerics numerics = {};
    bool encoder = false;
    bool training = false;
  };
  // hidden [batch, seq, d_model] in the dtype of the computation.
  T5Residual(const at::Tensor& hidden, const Options& options);

  // RMSNorm of the stream, in the dtype of the computation. Source: Zhang and Sennrich 2019.
  at::Tensor normalised(const T5WeightImpl& norm, double epsilon);

  void add(const at::Tensor& x);

  // The stream with all that was added.
  at::Tensor hidden() const { return pending_.defined() ? hidden_ + pending_ : hidden_; }

 private:
  enum class Clamp : uint8_t { kNone, kIfInfinite, kAlways };

  at::Tensor hidden_;
  at::Tensor pending_;  // to be added; or undefined
  at::ScalarType dtype_;
  Clamp clamp_ = Clamp::kNone;
};

}  // namespace plimsoll::models
