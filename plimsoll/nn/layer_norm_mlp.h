// The MLP of a transformer block as one op: norm, fc1, activation, fc2. Parameters: layer_norm_weight, layer_norm_bias,
// fc1_weight, fc1_bias, fc2_weight, fc2_bias. Buffers: fc1_input_scale, ..., fc2_grad_output_step.
#pragma once

#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/nn/norm_parameters.h"
#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/ops/fused/norm_mlp.h"

namespace plimsoll::nn {

struct LayerNormMlpOptions {
  double eps = 1e-5;
  bool bias = true;  // of both linears
  Normalization normalization = Normalization::kLayerNorm;
  std::string activation = "gelu";             // ops::parse_activation
  std::vector<double> activation_params = {};  // ops::activation_spec
  bool zero_centered_gamma = false;
};

class LayerNormMlpImpl : public ScaledModule<LayerNormMlpImpl> {
 public:
  LayerNormMlpImpl(int64_t hidden_size, int64_t ffn_hidden_size, LayerNormMlpOptions options = {});
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // x [..., hidden_size] -> the same shape. is_first_microbatch: ops::LinearScaling.
  at::Tensor forward(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt) {
    return forward(x, at::Tensor(), is_first_microbatch).output;
  }
  // The layer on x + residual, which comes back as `sum` where there is a residual.
  ops::NormOutput forward(const at::Tensor& x, const at::Tensor& residual, std::optional<bool> is_first_microbatch);

  const kernels::ActivationSpec& activation() const { return activation_; }

  int64_t hidden_size, ffn_hidden_size;
  LayerNormMlpOptions options;
  NormParameters layer_norm;
  ops::MlpWeights weights;

 private:
  ops::NormOptions norm_options() const;
  // Op by op, with what adapters add to both products.
  ops::NormOutput run_adapted(const ops::NormInput& input, const ops::MlpScaling& scaling) const;

  kernels::ActivationSpec activation_;
  std::shared_ptr<ops::LinearState> fc1_, fc2_;
};
TORCH_MODULE(LayerNormMlp);

}  // namespace plimsoll::nn
