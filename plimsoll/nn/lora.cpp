#include "plimsoll/nn/lora.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <cmath>

#include "plimsoll/nn/checks.h"
#include "plimsoll/nn/undrawn.h"

namespace plimsoll::nn {

double LoraOptions::scaling() const {
  const auto divisor = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(divisor) : divisor);
}

LoraImpl::LoraImpl(int64_t in, std::vector<LoraPart> of_parts, LoraOptions settings)
    : in_features(in), parts(std::move(of_parts)), options(settings) {
  check_size("lora", "rank", options.rank, 1);
  TORCH_CHECK_VALUE(std::isfinite(options.alpha), "lora: expected a finite alpha, got ", options.alpha);
  check_dropout("lora", "dropout", options.dropout);
  LoraImpl::reset();
}

void LoraImpl::reset() {
  a.clear();
  b.clear();
  for (const LoraPart& part : parts) {
    a.push_back(register_parameter(part.name + "_A", at::empty({options.rank, in_features}, at::kFloat)));
    b.push_back(register_parameter(part.name + "_B", at::empty({part.rows, options.rank}, at::kFloat)));
  }
  reset_parameters();
}

void LoraImpl::reset_parameters() {
  if (UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  const double bound = in_features > 0 ? 1 / std::sqrt(static_cast<double>(in_features)) : 0;
  for (at::Tensor& each : a) each.uniform_(-bound, bound);
  for (at::Tensor& each : b) each.zero_();
}

void LoraImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::Lora(in_features=" << in_features << ", rank=" << options.rank << ", alpha=" << options.alpha
         << ", parts=" << parts.size() << ")";
}

at::Tensor LoraImpl::forward(const at::Tensor& x, const ops::LayerOfInput& layer) const {
  std::vector<ops::LowRank> adapters;
  for (size_t i = 0; i < parts.size(); ++i) adapters.push_back({a[i], b[i], parts[i].first_row});
  return ops::with_low_rank(x, adapters, {.factor = options.scaling(), .dropout = is_training() ? options.dropout : 0},
                            layer);
}

at::Tensor LoraImpl::delta(size_t part) const {
  const at::NoGradGuard no_grad;
  return at::matmul(b[part].to(at::kFloat), a[part].to(at::kFloat)) * options.scaling();
}

}  // namespace plimsoll::nn
