// y = x weight^T + bias under the recipe of the scope. Parameters: weight [out, in], bias [out].
#pragma once

#include <torch/nn/pimpl.h>

#include <optional>
#include <vector>

#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/nn/split_parameter.h"

namespace plimsoll::nn {

struct LinearOptions {
  bool bias = true;
  std::vector<ParameterPart> parameters_split = {};  // empty: `weight` and `bias`
  bool high_precision = false;  // never codes: products in the high-precision format of the scope's recipe
  // Form in which the layer keeps its input for backward: its codes, or the input itself, which costs nothing where the
  // op before keeps it anyway.
  ops::SaveInput save_input = ops::SaveInput::kCodes;
};

class LinearImpl : public ScaledModule<LinearImpl> {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, LinearOptions options = {});
  void reset() override;
  // As torch::nn::Linear: uniform within 1 / sqrt(in_features).
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // x [..., in_features] -> [..., out_features]. is_first_microbatch: ops::LinearScaling.
  at::Tensor forward(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt);

  int64_t in_features, out_features;
  LinearOptions options;
  SplitParameter weight, bias;

 private:
  std::shared_ptr<ops::LinearState> state_;
};
TORCH_MODULE(Linear);

// Uniform within 1 / sqrt(in_features), as torch::nn::Linear draws both.
void reset_linear(const SplitParameter& weight, const SplitParameter& bias, int64_t in_features);

}  // namespace plimsoll::nn
