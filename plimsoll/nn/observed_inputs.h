// Inputs of products, for whoever wants to see them while a model runs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <string>

namespace plimsoll::nn {

// While one lives, on this thread, each nn::Linear, LayerNormLinear and LayerNormMlp shows what its products multiply by their
// weights: x [..., in], in the dtype of the computation, with the name of the product (ops::LinearState). Layers compute op by op
// then, and a norm's output is rounded to that dtype before it is multiplied. Nests: the inner one sees.
class ObservedInputs {
 public:
  using See = std::function<void(const std::string& product, const at::Tensor& x)>;

  explicit ObservedInputs(See see);
  ~ObservedInputs();
  ObservedInputs(const ObservedInputs&) = delete;
  ObservedInputs& operator=(const ObservedInputs&) = delete;

  static bool are_wanted();
  // Nothing happens where nobody wants them.
  static void show(const std::string& product, const at::Tensor& x);

 private:
  const See see_;
  const ObservedInputs* outer_;
};

}  // namespace plimsoll::nn
