// Operators that the scalers of Python call: torch.ops.plimsoll.unscale_gradients_, next_loss_scale and share_findings.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plimsoll/amp/loss_scale_rule.h"
#include "plimsoll/amp/shared_findings.h"
#include "plimsoll/amp/unscale.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_library.h"
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
      "loss scale: expected a histogram of ", bins, " int64, got ", counts.toString(), counts.sizes());
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

// The amp::LossScale after a step. With a histogram the rule is automatic.
std::tuple<double, int64_t, int64_t> next_loss_scale(double scale, int64_t growth_tracker, bool found_inf,
                                                     int64_t overflows, double growth_factor, double backoff_factor,
                                                     int64_t growth_interval, int64_t hysteresis, double min_scale,
                                                     double max_scale, const std::optional<at::Tensor>& histogram,
                                                     double grad_norm, std::optional<double> flushed_share,
                                                     std::optional<double> headroom) {
  TORCH_CHECK_VALUE(min_scale <= max_scale, "loss scale: expected min_scale <= max_scale, got ", min_scale, " and ",
                    max_scale);
  TORCH_CHECK_VALUE(growth_interval > 0 && growth_tracker < std::numeric_limits<int64_t>::max(),
                    "loss scale: expected growth_interval > 0 and a count of steps, got ", growth_interval, " and ",
                    growth_tracker);
  TORCH_CHECK_VALUE(hysteresis > 0 && overflows >= 0 && overflows < std::numeric_limits<int64_t>::max(),
                    "loss scale: expected hysteresis > 0 and a count of overflows, got ", hysteresis, " and ",
                    overflows);
  amp::LossScaleRule rule{.growth_factor = growth_factor,
                          .backoff_factor = backoff_factor,
                          .growth_interval = growth_interval,
                          .hysteresis = hysteresis,
                          .min_scale = min_scale,
                          .max_scale = max_scale};
  amp::StepEvidence seen{.found_inf = found_inf, .grad_norm = grad_norm};
  if (histogram) {
    constexpr amp::AutomaticScale kUsual;
    seen.histogram = histogram_of(*histogram);
    rule.automatic = {.flushed_share = flushed_share.value_or(kUsual.flushed_share),
                      .headroom = headroom.value_or(kUsual.headroom)};
  }
  amp::LossScale state{.scale = static_cast<float>(scale), .growth_tracker = growth_tracker, .overflows = overflows};
  state.update(rule, seen);
  return {static_cast<double>(state.scale), state.growth_tracker, state.overflows};
}

// amp::shared of what this rank found. The norm without the loss scale, the histogram with it.
std::tuple<int64_t, int64_t, double, double, at::Tensor> share_findings(const RanksPointer& ranks, int64_t number,
                                                                        int64_t gradients, int64_t non_finite,
                                                                        double grad_norm, const at::Tensor& histogram) {
  const amp::Findings found = amp::shared({.gradients = gradients,
                                           .non_finite = non_finite,
                                           .sum_of_squares = grad_norm * grad_norm,
                                           .histogram = histogram_of(histogram)},
                                          number, *ranks->communicator);
  return {found.gradients, found.non_finite, std::sqrt(found.sum_of_squares), found.histogram.flushed_share(),
          tensor_of(found.histogram)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def(
      "unscale_gradients_(Tensor(a!)[] grads, float inv_scale, *, float? max_norm=None, bool expect_clip=False) -> "
      "(float grad_norm, float clip_factor, int non_finite, int first_non_finite, float flushed_share, Tensor "
      "histogram)");
  library.def(
      "next_loss_scale(*, float scale, int growth_tracker, bool found_inf, int overflows=0, float growth_factor=2.0, "
      "float backoff_factor=0.5, int growth_interval, int hysteresis=1, float min_scale, float max_scale, "
      "Tensor? histogram=None, float grad_norm=0.0, float? flushed_share=None, float? headroom=None) -> "
      "(float scale, int growth_tracker, int overflows)",
      &next_loss_scale);
  library.def("clip_factor(*, float max_norm, float grad_norm) -> float", &ops::clip_factor);
}

// One sparse gradient among them is enough for a Sparse key, one on a CUDA device for a CUDA key.
TORCH_LIBRARY_IMPL(plimsoll, SparseCPU, library) { library.impl("unscale_gradients_", &unscale_gradients); }
TORCH_LIBRARY_IMPL(plimsoll, SparseCUDA, library) { library.impl("unscale_gradients_", &unscale_gradients); }
TORCH_LIBRARY_IMPL(plimsoll, CPU, library) { library.impl("unscale_gradients_", &unscale_gradients); }
TORCH_LIBRARY_IMPL(plimsoll, CUDA, library) { library.impl("unscale_gradients_", &unscale_gradients); }

void register_findings(torch::Library& library) {
  library.def(
      "share_findings(__torch__.torch.classes.plimsoll.Ranks ranks, *, int number, int gradients, int non_finite, "
      "float grad_norm, Tensor histogram) -> (int gradients, int non_finite, float grad_norm, float flushed_share, "
      "Tensor histogram)",
      &share_findings);
}

}  // namespace plimsoll::bind
