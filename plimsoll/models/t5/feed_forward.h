// The feed-forward part of a block: wo(relu(wi x)), or gated wo(gelu(wi_0 x) * (wi_1 x)).
#pragma once

#include "plimsoll/models/t5/config.h"
#include "plimsoll/models/t5/fixes.h"
#include "plimsoll/models/t5/product.h"

namespace plimsoll::models {

// Children: wi, or wi_0 and wi_1; wo.
class T5DenseReluDenseImpl : public torch::nn::Cloneable<T5DenseReluDenseImpl> {
 public:
  explicit T5DenseReluDenseImpl(const T5Config& config);
  void reset() override;

  // x [..., d_model] -> [..., d_model] in its dtype; in FP32 where the output is scaled (downproject_scale).
  at::Tensor forward(const at::Tensor& x, const T5Numerics& numerics);

  std::vector<T5Product> products() const { return {up_, down_}; }

  T5Config config;
  T5Linear wi{nullptr}, wi_0{nullptr}, wi_1{nullptr}, wo{nullptr};

 private:
  friend class T5TeamStep;
  at::Tensor hidden(const at::Tensor& x, const T5Numerics& numerics);

  T5Product up_, down_;
};
TORCH_MODULE(T5DenseReluDense);

}  // namespace plimsoll::models
