#include "plimsoll/models/t5/residual.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/isinf.h>

#include <utility>

#include "plimsoll/format/format.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::models {
namespace {

// The bounds of Hugging Face's T5Block. Its dynamic branch takes the lower one for the whole batch where one element is
// infinite.
constexpr double kLargest = format::max_finite(format::Format::kFp16), kLower = kLargest - 1000;

}  // namespace

T5Residual::T5Residual(const at::Tensor& hidden, const Options& options)
    : hidden_(hidden), dtype_(hidden.scalar_type()) {
  const T5Numerics& numerics = options.numerics;
  if (!numerics || dtype_ != at::kHalf) return;
  if (options.encoder && numerics->residual_fp32) hidden_ = hidden.to(at::kFloat);
  if (hidden_.scalar_type() != at::kHalf) return;
  if (!numerics->no_dynamic_clamp) clamp_ = Clamp::kIfInfinite;
  if (numerics->training_clamp && options.training) clamp_ = Clamp::kAlways;
}

at::Tensor T5Residual::normalised(const T5WeightImpl& norm, double epsilon) {
  const ops::NormOutput result = ops::norm({.x = hidden_, .residual = pending_, .weight = norm.weight},
                                           {.kind = kernels::NormKind::kRmsNorm, .epsilon = epsilon}, dtype_);
  if (pending_.defined()) hidden_ = result.sum;
  pending_ = at::Tensor();
  nn::report_values(norm.path, "input", hidden_);
  nn::report_between(norm.path, "output", result.output);
  return result.output;
}

void T5Residual::add(const at::Tensor& x) {
  if (pending_.defined()) hidden_ = hidden_ + std::exchange(pending_, {});
  if (clamp_ == Clamp::kNone && x.scalar_type() == hidden_.scalar_type()) {
    pending_ = x;
    return;
  }
  hidden_ = (hidden_ + x).to(hidden_.scalar_type());
  if (clamp_ == Clamp::kNone) return;
  const bool lower = clamp_ == Clamp::kAlways || at::isinf(hidden_).any().item<bool>();
  hidden_ = at::clamp(hidden_, lower ? -kLower : -kLargest, lower ? kLower : kLargest);
}

}  // namespace plimsoll::models
