// LayerNorm and RMSNorm over the last dimension: FP32 inside, the result in the scope's high-precision dtype, outside a
// scope in that of the input. Parameters: weight, and bias for LayerNorm.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "plimsoll/nn/norm_parameters.h"

namespace plimsoll::nn {

struct LayerNormOptions {
  double eps = 1e-5;
  bool zero_centered_gamma = false;  // weight starts at 0 and 1 + weight multiplies
};

class NormImpl : public torch::nn::Cloneable<NormImpl> {
 public:
  NormImpl(int64_t hidden_size, const ops::NormOptions& options);
  void reset() override;
  void reset_parameters() { affine_.reset(options); }
  void pretty_print(std::ostream& stream) const override;

  // x [..., hidden_size].
  at::Tensor forward(const at::Tensor& x) { return forward(x, {}).output; }
  // The norm of x + residual, which comes back as `sum` where there is a residual.
  ops::NormOutput forward(const at::Tensor& x, const at::Tensor& residual);

  const NormParameters& affine() const { return affine_; }

  int64_t hidden_size;
  ops::NormOptions options;

 private:
  NormParameters affine_;
};
TORCH_MODULE(Norm);

class LayerNorm : public Norm {
 public:
  explicit LayerNorm(int64_t hidden_size, const LayerNormOptions& options = {});
  LayerNorm(std::shared_ptr<NormImpl> module) : Norm(std::move(module)) {}  // NOLINT(google-explicit-constructor)
};

class RmsNorm : public Norm {
 public:
  explicit RmsNorm(int64_t hidden_size, const LayerNormOptions& options = {});
  RmsNorm(std::shared_ptr<NormImpl> module) : Norm(std::move(module)) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace plimsoll::nn
