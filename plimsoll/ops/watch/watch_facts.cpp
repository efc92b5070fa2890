#include "plimsoll/ops/watch/watch_facts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/record_function.h>

#include <cmath>
#include <utility>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/torch_internals/tracing.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::ops {
namespace {

// Torch's operators inside are nobody's business.
struct Quiet {
  at::RecordFunctionGuard records{/*is_enabled=*/false};
  at::NoGradGuard grads;
};

}  // namespace

bool is_freed(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return !tensor.has_storage() || tensor.storage().nbytes() < static_cast<size_t>(last + 1) * tensor.itemsize();
}

bool has_values(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.numel() == 0 ||
      is_traced(tensor) || is_freed(tensor)) {
    return false;
  }
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

float amax_of_any(const at::Tensor& tensor) {
  if (!has_values(tensor)) return 0;
  const Quiet quiet;
  return ops::amax(tensor.reshape({1, -1}));
}

watch::TensorFacts facts_of(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name),
          .shape = tensor.sizes().vec(),
          .format = format_of(tensor.scalar_type(), "watch"),
          .amax = amax_of_any(tensor)};
}

bool find_bad(const at::Tensor& result, watch::Incident& incident) {
  const Quiet quiet;
  const at::Tensor bad = at::isfinite(result).logical_not().flatten();
  incident.bad_elements = bad.sum().item<int64_t>();
  if (incident.bad_elements == 0) return false;
  const int64_t columns = result.dim() == 0 ? 1 : result.size(-1);
  const int64_t first = bad.to(at::kByte).argmax().item<int64_t>();
  incident.row = first / columns;
  incident.column = first % columns;
  incident.token = result.dim() < 2 ? 0 : incident.row % result.size(-2);
  return true;
}

double element_at(const at::Tensor& tensor, const watch::Incident& incident) {
  const Quiet quiet;
  const int64_t columns = tensor.dim() == 0 ? 1 : tensor.size(-1);
  return tensor.reshape({-1})[incident.row * columns + incident.column].item<double>();
}

watch::Replay compare(const at::Tensor& exact, const at::Tensor& result) {
  const Quiet quiet;
  const at::Tensor wide = exact.to(at::kDouble), narrow = result.to(at::kDouble);
  const at::Tensor finite = at::isfinite(narrow);
  const double error = (wide - narrow).masked_select(finite).norm().item<double>();
  const double size = wide.masked_select(finite).norm().item<double>();
  const float largest = amax_of_any(exact);
  return {.amax = largest,
          .headroom_bits = watch::headroom_bits({.format = format_of(result.scalar_type(), "watch"), .amax = largest}),
          .relative_error = size == 0 ? 0 : error / size};
}

watch::Harm harm_of(float operands, float result) {
  if (std::isfinite(result)) return watch::Harm::kAbsorbed;
  return std::isnan(result) && !std::isnan(operands) ? watch::Harm::kNanProducing : watch::Harm::kPropagating;
}

}  // namespace plimsoll::ops
