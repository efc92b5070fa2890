#include "plimsoll/ops/torch_internals/accumulation.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace plimsoll::ops {
namespace {

struct AccumulationHook final : torch::autograd::PostAccumulateGradHook {
  explicit AccumulationHook(std::function<void()> hook) : call(std::move(hook)) {}
  void operator()(const at::Tensor& /*parameter*/) override { call(); }
  std::function<void()> call;
};

}  // namespace

void hook_accumulation(const at::Tensor& parameter, std::function<void()> hook) {
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> made;
  if (hook) made = std::make_unique<AccumulationHook>(std::move(hook));
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(made));
}

bool has_accumulation_hook(const at::Tensor& parameter) {
  return torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
}

NodePointer accumulator_of(const at::Tensor& parameter) {
  return torch::autograd::impl::try_get_grad_accumulator(parameter);
}

}  // namespace plimsoll::ops
