// Norm and linear as one op. Parameters: layer_norm_weight, layer_norm_bias, weight, bias.
#pragma once

#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/nn/norm_parameters.h"
#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/nn/split_parameter.h"

namespace plimsoll::nn {

struct LayerNormLinearOptions {
  double eps = 1e-5;
  bool bias = true;  // of the linear
  Normalization normalization = Normalization::kLayerNorm;
  bool zero_centered_gamma = false;
  std::vector<ParameterPart> parameters_split = {};  // empty: `weight` and `bias`
};

class LayerNormLinearImpl : public ScaledModule<LayerNormLinearImpl> {
 public:
  LayerNormLinearImpl(int64_t in_features, int64_t out_features, LayerNormLinearOptions options = {});
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // x [..., in_features] -> [..., out_features]. is_first_microbatch: ops::LinearScaling.
  at::Tensor forward(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt) {
    return forward(x, at::Tensor(), is_first_microbatch).output;
  }
  // The layer on x + residual, which comes back as `sum` where there is a residual.
  ops::NormOutput forward(const at::Tensor& x, const at::Tensor& residual, std::optional<bool> is_first_microbatch);

  const std::string& path() const { return state_->name; }  // in the model, for reports

  int64_t in_features, out_features;
  LayerNormLinearOptions options;
  NormParameters layer_norm;
  SplitParameter weight, bias;

 private:
  ops::NormOptions norm_options() const;

  std::shared_ptr<ops::LinearState> state_;
};
TORCH_MODULE(LayerNormLinear);

}  // namespace plimsoll::nn
