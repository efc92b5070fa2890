#include "plimsoll/models/t5/residual.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/isinf.h>

#include <utility>

#include "plimsoll/format/format.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::models {
namespace {

// The dynamic branch of Hugging Face's T5Block: one infinite element lowers the bound of the whole batch.
at::Tensor clamp_if_infinite(const at::Tensor& x) {
  constexpr double kLargest = format::max_finite(format::Format::kFp16);
  const double bound = at::isinf(x).any().item<bool>() ? kLargest - 1000 : kLargest;
  return at::clamp(x, -bound, bound);
}

}  // namespace

T5Residual::T5Residual(const at::Tensor& hidden, const T5Numerics& numerics, bool encoder)
    : hidden_(hidden), dtype_(hidden.scalar_type()) {
  if (!numerics || dtype_ != at::kHalf) return;
  if (encoder && numerics->residual_fp32) hidden_ = hidden.to(at::kFloat);
  clamps_ = !numerics->no_dynamic_clamp && hidden_.scalar_type() == at::kHalf;
}

at::Tensor T5Residual::normalised(const T5WeightImpl& norm, double epsilon) {
  const ops::NormOutput result = ops::norm({.x = hidden_, .residual = pending_, .weight = norm.weight},
                                           {.kind = kernels::NormKind::kRmsNorm, .epsilon = epsilon}, dtype_);
  if (pending_.defined()) hidden_ = result.sum;
  pending_ = at::Tensor();
  nn::report_values(norm.path, "input", hidden_);
  return result.output;
}

void T5Residual::add(const at::Tensor& x) {
  if (pending_.defined()) hidden_ = hidden_ + std::exchange(pending_, {});
  if (clamps_ || x.scalar_type() != hidden_.scalar_type()) {
    hidden_ = (hidden_ + x).to(hidden_.scalar_type());
    if (clamps_) hidden_ = clamp_if_infinite(hidden_);
  } else {
    pending_ = x;
  }
}

}  // namespace plimsoll::models
