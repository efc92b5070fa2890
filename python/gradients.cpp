// What amp.GradScaler of the Python package does to gradients: torch.ops.plimsoll.unscale_gradients_.
#include <torch/library.h>

#include "plimsoll/amp/unscale.h"

namespace plimsoll::python {
namespace {

std::tuple<double, double, int64_t, int64_t> unscale_gradients(at::TensorList grads, double inv_scale,
                                                               std::optional<double> max_norm) {
  amp::UnscaleOptions options{.inv_scale = static_cast<float>(inv_scale)};
  if (max_norm) options.max_norm = *max_norm;
  const amp::UnscaleSummary summary = amp::unscale_gradients_(grads, options);
  return {summary.grad_norm, summary.clip_factor, summary.non_finite, summary.first_non_finite};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def(
      "unscale_gradients_(Tensor(a!)[] grads, float inv_scale, float? max_norm=None) -> "
      "(float grad_norm, float clip_factor, int non_finite, int first_non_finite)");
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) { library.impl("unscale_gradients_", &unscale_gradients); }

}  // namespace plimsoll::python
