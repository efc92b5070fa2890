#include "plimsoll/amp/unscale.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <vector>

#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/scaled_optimizer.h"
#include "plimsoll/ops/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::amp {
namespace {

// The elements of one gradient as the kernel takes them.
struct Elements {
  at::Tensor grad;   // dense: the gradient itself, or the values of a sparse one
  at::Tensor dense;  // grad in storage order without gaps; a copy where grad has gaps or overlaps
  bool copied() const { return !dense.is_alias_of(grad); }
};

Elements elements_of(const at::Tensor& grad) {
  TORCH_CHECK(grad.device().is_cpu(), "unscale_: expected gradients on the CPU, got one on ", grad.device());
  at::Tensor values = grad;
  if (grad.is_sparse()) {
    TORCH_CHECK(grad.is_coalesced(), "unscale_: expected sparse gradients that are coalesced, got one that is not");
    values = grad._values();
  }
  return {values, values.is_non_overlapping_and_dense() ? values : values.contiguous()};
}

// One tensor of fp64, which the kernel does not know.
void unscale_double(const at::Tensor& grad, const kernels::GradientPass& pass, kernels::GradientSummary& summary,
                    int64_t index) {
  const at::Tensor scaled = grad * static_cast<double>(pass.scale);
  const int64_t non_finite = scaled.numel() - at::isfinite(scaled).sum().item<int64_t>();
  if (non_finite > 0 && (summary.first_non_finite < 0 || index < summary.first_non_finite)) {
    summary.first_non_finite = index;
  }
  summary.non_finite += non_finite;
  summary.sum_of_squares += scaled.square().sum().item<double>();
  if (pass.write) grad.copy_(scaled);
}

class Gradients {
 public:
  explicit Gradients(at::TensorList grads) {
    for (const at::Tensor& grad : grads) {
      const Elements elements = elements_of(grad);
      const auto index = static_cast<int64_t>(all_.size());
      all_.push_back(elements);
      if (elements.dense.scalar_type() == at::kDouble) {
        doubles_.push_back(index);
        continue;
      }
      bytes_ += ops::traffic(elements.dense);
      tensors_.push_back({.data = elements.dense.data_ptr(),
                          .format = ops::format_of(elements.dense.scalar_type(), "unscale_"),
                          .count = elements.dense.numel()});
      places_.push_back(index);
    }
  }

  kernels::GradientSummary pass(float scale, bool write) const {
    const watch::Span span("unscale", {.bytes = write ? 2 * bytes_ : bytes_});
    const kernels::GradientPass args = {
        .tensors = tensors_.data(), .tensor_count = tensors_.size(), .scale = scale, .write = write};
    kernels::GradientSummary summary = kernels::gradient_pass(args);
    if (summary.first_non_finite >= 0) {
      summary.first_non_finite = places_[static_cast<size_t>(summary.first_non_finite)];
    }
    for (const int64_t index : doubles_) {
      unscale_double(all_[static_cast<size_t>(index)].dense, args, summary, index);
    }
    if (write) {
      for (const Elements& elements : all_) {
        if (elements.copied()) elements.grad.copy_(elements.dense);
      }
    }
    return summary;
  }

 private:
  std::vector<Elements> all_;
  std::vector<kernels::GradientTensor> tensors_;
  std::vector<int64_t> places_, doubles_;  // where the tensors, and those of fp64, stand among all
  double bytes_ = 0;
};

}  // namespace

UnscaleSummary unscale_gradients_(at::TensorList grads, const UnscaleOptions& options) {
  TORCH_CHECK(std::isfinite(options.inv_scale), "unscale_: expected a finite inverse scale, got ", options.inv_scale);
  const at::NoGradGuard no_grad;
  UnscaleSummary summary{.histogram = gradient_histogram(grads)};
  const Gradients gradients(grads);
  const bool clips = std::isfinite(options.max_norm);
  const bool writes = options.inv_scale != 1 && !(clips && options.expect_clip);
  const kernels::GradientSummary seen = gradients.pass(options.inv_scale, writes);
  summary.grad_norm = std::sqrt(seen.sum_of_squares);
  summary.non_finite = seen.non_finite;
  summary.first_non_finite = seen.first_non_finite;
  if (clips && seen.non_finite == 0) summary.clip_factor = ops::clip_factor(options.max_norm, summary.grad_norm);
  const auto left = static_cast<float>((writes ? 1 : options.inv_scale) * summary.clip_factor);
  if (left != 1) gradients.pass(left, /*write=*/true);
  return summary;
}

}  // namespace plimsoll::amp
