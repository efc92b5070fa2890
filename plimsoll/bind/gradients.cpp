// What the scalers of plimsoll.amp ask of gradients: torch.ops.plimsoll.unscale_gradients_ and automatic_scale.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "plimsoll/amp/automatic_scale.h"
#include "plimsoll/amp/unscale.h"
#include "plimsoll/ops/optimizer/scaled_optimizer.h"

namespace plimsoll::bind {
namespace {

at::Tensor tensor_of(const amp::GradientHistogram& histogram) {
  const at::Tensor counts = at::empty({static_cast<int64_t>(histogram.counts.size())}, at::kLong);
  std::ranges::copy(histogram.counts, counts.mutable_data_ptr<int64_t>());
  return counts;
}

amp::GradientHistogram histogram_of(const at::Tensor& counts) {
  amp::GradientHistogram histogram;
  const auto bins = static_cast<int64_t>(histogram.counts.size());
  TORCH_CHECK(
      counts.scalar_type() == at::kLong && counts.dim() == 1 && counts.numel() == bins && counts.is_contiguous(),
      "automatic_scale: expected a histogram of ", bins, " int64, got ", counts.toString(), counts.sizes());
  std::copy_n(counts.const_data_ptr<int64_t>(), bins, histogram.counts.begin());
  return histogram;
}

std::tuple<double, double, int64_t, int64_t, double, at::Tensor> unscale_gradients(at::TensorList grads,
                                                                                   double inv_scale,
                                                                                   std::optional<double> max_norm,
                                                                                   bool expect_clip) {
  amp::UnscaleOptions options{.inv_scale = static_cast<float>(inv_scale), .expect_clip = expect_clip};
  if (max_norm) options.max_norm = *max_norm;
  const amp::UnscaleSummary summary = amp::unscale_gradients_(grads, options);
  return {summary.grad_norm,
          summary.clip_factor,
          summary.non_finite,
          summary.first_non_finite,
          summary.histogram.flushed_share(),
          tensor_of(summary.histogram)};
}

double automatic_scale(const at::Tensor& histogram, double scale, double grad_norm, bool may_grow, double flushed_share,
                       double headroom) {
  return amp::automatic_scale(scale,
                              {.histogram = histogram_of(histogram), .grad_norm = grad_norm, .may_grow = may_grow},
                              {.flushed_share = flushed_share, .headroom = headroom});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def(
      "unscale_gradients_(Tensor(a!)[] grads, float inv_scale, *, float? max_norm=None, bool expect_clip=False) -> "
      "(float grad_norm, float clip_factor, int non_finite, int first_non_finite, float flushed_share, Tensor "
      "histogram)");
  library.def(
      "automatic_scale(Tensor histogram, *, float scale, float grad_norm, bool may_grow, float flushed_share, "
      "float headroom) -> float");
  library.def("clip_factor(*, float max_norm, float grad_norm) -> float", &ops::clip_factor);
}

// One sparse gradient among them is enough.
TORCH_LIBRARY_IMPL(plimsoll, SparseCPU, library) { library.impl("unscale_gradients_", &unscale_gradients); }

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) {
  library.impl("unscale_gradients_", &unscale_gradients);
  library.impl("automatic_scale", &automatic_scale);
}

}  // namespace plimsoll::bind
