// Helpers of the modules' tests: the error of a computation against the same one in double, and threads.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "plimsoll/runtime/threads_testing.h"

namespace plimsoll::nn::testing {

using Tensors = std::vector<at::Tensor>;
// From inputs (and parameters) to outputs, with torch's own ops.
using Composition = std::function<at::Tensor(const Tensors&)>;

using runtime::testing::ScopedThreads;

inline Tensors leaves(const Tensors& tensors, at::ScalarType dtype) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.detach().clone().to(dtype).requires_grad_(true));
  }
  return result;
}

// The output, then the gradients of all inputs for the gradient `seed` of the output.
inline Tensors run_composition(const Composition& composition, const Tensors& inputs, const at::Tensor& seed) {
  const at::Tensor output = composition(inputs);
  output.backward(seed.to(output.scalar_type()));
  Tensors result = {output.detach()};
  for (const at::Tensor& input : inputs) {
    result.push_back(input.grad().defined() ? input.grad() : torch::zeros_like(input));
  }
  return result;
}

inline double largest(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

// At most four times the error that torch makes in the same precision, and never held to less than one rounding of the
// largest element; `other` is the bound of an error that torch does not make. NaN fails.
inline void expect_as_accurate(const at::Tensor& ours, const at::Tensor& torchs, const at::Tensor& exact,
                               const std::string& what, double other = 0) {
  ASSERT_EQ(ours.sizes(), exact.sizes()) << what;
  const double rounding = torchs.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-23;
  const double bound = 4 * largest(torchs.to(at::kDouble) - exact) + rounding * largest(exact) + other;
  const double error = largest(ours.to(at::kDouble) - exact);
  EXPECT_TRUE(error <= bound) << what << ": error " << error << ", bound " << bound;
}

// ours: output and gradients in the order of run_composition.
inline void expect_matches(const Tensors& ours, const Composition& composition, const Tensors& inputs,
                           const at::Tensor& seed, at::ScalarType dtype = at::kFloat) {
  const Tensors torchs = run_composition(composition, leaves(inputs, dtype), seed);
  const Tensors exact = run_composition(composition, leaves(inputs, at::kDouble), seed);
  ASSERT_EQ(ours.size(), exact.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    expect_as_accurate(ours[i], torchs[i], exact[i], i == 0 ? "output" : "gradient " + std::to_string(i - 1));
  }
}

// Output and gradients of a module: those of x, then those of its parameters in their order.
template <class Forward>
Tensors run_module(torch::nn::Module& module, const Forward& forward, const at::Tensor& x, const at::Tensor& seed) {
  const at::Tensor input = x.detach().clone().requires_grad_(true);
  module.zero_grad();
  const at::Tensor output = forward(input);
  output.backward(seed.to(output.scalar_type()));
  Tensors result = {output.detach(), input.grad()};
  for (const at::Tensor& parameter : module.parameters()) result.push_back(parameter.grad());
  return result;
}

inline Tensors with_parameters(const at::Tensor& x, const torch::nn::Module& module) {
  Tensors result = {x};
  for (const at::Tensor& parameter : module.parameters()) result.push_back(parameter);
  return result;
}

// Norm weights and biases away from the values at which they have no effect.
inline void randomize(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 1) parameter.uniform_(0.5, 1.5);
  }
}

}  // namespace plimsoll::nn::testing
