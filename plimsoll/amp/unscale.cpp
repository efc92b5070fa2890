#include "plimsoll/amp/unscale.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/amp/gradient_sample.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/ops/optimizer/scaled_optimizer.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/ops/torch_internals/sparse_entries.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::amp {
namespace {

// The elements of one gradient as the kernel takes them.
struct Elements {
  at::Tensor grad;     // dense: the gradient itself, or the values of a sparse one
  at::Tensor dense;    // grad in storage order without gaps; a copy where grad has gaps or overlaps
  at::Tensor entries;  // of a sparse gradient that may have several for one place: itself; otherwise undefined
  bool copied() const { return !dense.is_alias_of(grad); }
  // The kernel takes one element a place, and no fp64.
  bool suits_kernel() const { return !entries.defined() && dense.scalar_type() != at::kDouble; }
};

Elements elements_of(const at::Tensor& grad) {
  TORCH_CHECK(grad.device().is_cpu(), "unscale_: expected gradients on the CPU, got one on ", grad.device());
  const at::Tensor values = grad.is_sparse() ? ops::entries_of(grad) : grad;
  return {.grad = values,
          .dense = values.is_non_overlapping_and_dense() ? values : values.contiguous(),
          .entries = grad.is_sparse() && !grad.is_coalesced() ? grad : at::Tensor()};
}

// One gradient that the kernel does not know.
void unscale_apart(const Elements& elements, const kernels::GradientPass& pass, kernels::GradientSummary& summary,
                   int64_t index) {
  const at::Tensor& dense = elements.dense;
  const bool is_double = dense.scalar_type() == at::kDouble;
  const at::Tensor scaled = (is_double ? dense : dense.to(at::kFloat)) * static_cast<double>(pass.scale);
  const int64_t non_finite = scaled.numel() - at::isfinite(scaled).sum().item<int64_t>();
  if (non_finite > 0 && (summary.first_non_finite < 0 || index < summary.first_non_finite)) {
    summary.first_non_finite = index;
  }
  summary.non_finite += non_finite;
  const at::Tensor sums =
      elements.entries.defined() ? ops::sums_of_places(elements.entries, scaled.to(at::kDouble)) : scaled;
  summary.sum_of_squares += sums.to(at::kDouble).square().sum().item<double>();
  if (pass.write) dense.copy_(scaled);
}

class Gradients {
 public:
  explicit Gradients(at::TensorList grads) {
    for (const at::Tensor& grad : grads) {
      const Elements elements = elements_of(grad);
      const auto index = static_cast<int64_t>(all_.size());
      all_.push_back(elements);
      if (!elements.suits_kernel()) {
        apart_.push_back(index);
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
    for (const int64_t index : apart_) {
      unscale_apart(all_[static_cast<size_t>(index)], args, summary, index);
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
  std::vector<int64_t> places_, apart_;  // where the tensors, and those that the kernel does not know, stand among all
  double bytes_ = 0;
};

// The summary of gradients whose scale is lost: none of their elements can be known.
UnscaleSummary nothing_finite(at::TensorList grads) {
  UnscaleSummary summary{.grad_norm = std::numeric_limits<double>::infinity(), .histogram = gradient_histogram(grads)};
  for (const at::Tensor& grad : grads) summary.non_finite += elements_of(grad).grad.numel();
  const int64_t first = Gradients(grads).pass(1, /*write=*/false).first_non_finite;
  summary.first_non_finite = first >= 0 || summary.non_finite == 0 ? first : 0;
  return summary;
}

}  // namespace

UnscaleSummary unscale_gradients_(at::TensorList grads, const UnscaleOptions& options) {
  const at::NoGradGuard no_grad;
  if (!std::isfinite(options.inv_scale)) return nothing_finite(grads);
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
