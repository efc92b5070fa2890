#include "plimsoll/shard/engine/sharded_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/ops/optimizer/scaled_optimizer.h"
#include "plimsoll/shard/average/exact_sum.h"
#include "plimsoll/shard/average/exact_sum_on_device.h"

namespace plimsoll::shard {
namespace {

using Units = std::vector<std::shared_ptr<ShardedUnit>>;

std::vector<at::Tensor> gradients_of(const Units& units) {
  std::vector<at::Tensor> result;
  for (const auto& unit : units) {
    for (const ShardedGroup& group : unit->groups()) {
      for (const at::Tensor& leaf : group.leaves()) {
        if (leaf.grad().defined()) result.push_back(leaf.grad());
      }
    }
  }
  return result;
}

bool is_ordered(const Units& units) {
  return std::ranges::any_of(units, [](const auto& unit) { return unit->options().ordered_passes > 0; });
}

at::Device device_of(const Units& units) {
  for (const auto& unit : units) {
    for (const ShardedGroup& group : unit->groups()) return group.parameters().front().second.device();
  }
  return at::kCPU;
}

// On a device the host reads once, the sum over all ranks.
double exact_norm(const std::vector<at::Tensor>& gradients, const ShardRanks& ranks, at::Device device) {
  ExactSumOfSquares sum;
  const at::Tensor words = at::from_blob(sum.words().data(), {1, static_cast<int64_t>(sum.words().size())}, at::kLong);
  at::Tensor mine = device.is_cpu() ? words : at::zeros(words.sizes(), words.options().device(device));
  for (const at::Tensor& gradient : gradients) {
    TORCH_CHECK(gradient.scalar_type() == at::kFloat, "clip_grad_norm_: expected fp32 gradients, got ",
                gradient.scalar_type());
    if (device.is_cpu()) {
      const at::Tensor dense = gradient.contiguous();
      sum.add({dense.const_data_ptr<float>(), static_cast<size_t>(dense.numel())});
    } else {
      add_squares(mine[0], gradient);
    }
  }
  if (ranks.size() > 1) mine = ranks.gather->all_gather(mine).sum({0}, /*keepdim=*/true);
  if (!mine.is_same(words)) words.copy_(mine);
  return std::sqrt(sum.value());
}

// Norms of the gradients that have elements, in fp64.
std::vector<at::Tensor> norms_of(const std::vector<at::Tensor>& gradients, double p) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor values = gradient.is_sparse() ? gradient.to(at::kDouble).coalesce().values() : gradient;
    if (values.numel() > 0) norms.push_back(at::linalg_vector_norm(values, p, {}, false, at::kDouble));
  }
  return norms;
}

double norm_on_cpu(const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double p) {
  const bool largest = std::isinf(p);
  double here = 0;
  for (const at::Tensor& each : norms_of(gradients, p)) {
    const auto norm = each.item<double>();
    const bool stays = std::isnan(here) || norm <= here;
    here = largest ? (stays ? here : norm) : here + std::pow(norm, p);
  }
  if (ranks.size() > 1) {
    const at::Tensor all = ranks.all_gather(at::scalar_tensor(here, at::kDouble).view({1}));
    here = (largest ? all.max() : all.sum()).item<double>();
  }
  return largest ? here : std::pow(here, 1 / p);
}

// The host reads once, the result.
double norm_on_device(const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double p,
                      at::Device device) {
  const bool largest = std::isinf(p);
  const std::vector<at::Tensor> norms = norms_of(gradients, p);
  at::Tensor here = at::zeros({1}, at::TensorOptions(device).dtype(at::kDouble));
  if (!norms.empty()) here = (largest ? at::stack(norms).max() : at::stack(norms).pow(p).sum()).view({1});
  if (ranks.size() > 1) {
    const at::Tensor all = ranks.all_gather(here);
    here = largest ? all.max() : all.sum();
  }
  const auto sum = here.item<double>();
  return largest ? sum : std::pow(sum, 1 / p);
}

double norm_on(at::Device device, const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double p) {
  TORCH_CHECK_VALUE(p > 0, "clip_grad_norm_: expected norm_type > 0, got ", p);
  return device.is_cpu() ? norm_on_cpu(gradients, ranks, p) : norm_on_device(gradients, ranks, p, device);
}

void scale_down(const std::vector<at::Tensor>& gradients, double max_norm, double norm) {
  const double factor = ops::clip_factor(max_norm, norm);
  const at::NoGradGuard no_grad;
  if (factor >= 1) return;
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
}

}  // namespace

double global_norm(const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double p) {
  const at::NoGradGuard no_grad;
  return norm_on(at::kCPU, gradients, ranks, p);
}

double clip_gradients_(const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double max_norm,
                       double p) {
  const double norm = global_norm(gradients, ranks, p);
  scale_down(gradients, max_norm, norm);
  return norm;
}

double global_norm(const Units& units, const ShardRanks& ranks, double p) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(units);
  const at::Device device = device_of(units);
  if (p == 2 && is_ordered(units)) return exact_norm(gradients, ranks, device);
  return norm_on(device, gradients, *ranks.gather, p);
}

double clip_gradients_(const Units& units, const ShardRanks& ranks, double max_norm, double p) {
  const double norm = global_norm(units, ranks, p);
  scale_down(gradients_of(units), max_norm, norm);
  return norm;
}

}  // namespace plimsoll::shard
