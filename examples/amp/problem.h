// The problem of the examples: a small model learns to copy a fixed one.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace problem {

constexpr int64_t kFeatures = 32, kOutputs = 8;

inline torch::nn::Sequential model(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(kFeatures, 64),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})), torch::nn::GELU(),
                               torch::nn::Linear(64, kOutputs));
}

struct Batch {
  at::Tensor input, target;
};

// The target is the fixed model's output.
class Data {
 public:
  Data() { at::set_num_threads(1); }  // the model is too small for more
  Batch next(int64_t size = 64) {
    const at::NoGradGuard no_grad;
    const at::Tensor input = at::randn({size, kFeatures});
    return {input, teacher_->forward(input)};
  }

 private:
  torch::nn::Sequential teacher_ = model(0);
};

// Prints how the loss fell; ends the program with 1 if it did not.
inline void report(const char* what, const std::vector<double>& losses) {
  std::printf("%s: loss %.4f -> %.4f in %zu steps\n", what, losses.front(), losses.back(), losses.size());
  if (losses.back() < 0.5 * losses.front()) return;
  std::fprintf(stderr, "%s: expected the loss to fall to less than half\n", what);
  std::exit(1);
}

}  // namespace problem
