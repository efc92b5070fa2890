// A GPT: learned positions, pre-norm blocks (LayerNorm or RMSNorm), GELU (tanh), final norm, head without bias.
// Blocks: TransformerLayer, fused [q; k; v].
#pragma once

#include <torch/nn/cloneable.h>

#include <optional>

#include "plimsoll/models/gpt/config.h"
#include "plimsoll/models/stacked_model.h"
#include "plimsoll/nn/transformer_layer.h"

namespace plimsoll::models {

class GptImpl : public torch::nn::Cloneable<GptImpl>, public StackedModel {
 public:
  explicit GptImpl(const GptConfig& config);
  void reset() override;
  // As GPT-2: matrices normal(0, 0.02), those that write to the residual stream less by sqrt(2 layers); biases 0, norms
  // the identity. Draws from `generator`, by default torch's own, so the seed alone decides.
  void reset_parameters(std::optional<at::Generator> generator = std::nullopt);

  // tokens int64 [batch, seq], seq <= context -> fp32 logits [batch, seq, vocabulary]. The residual stream is in the
  // scope's high-precision dtype, and so is the head's product. is_first_microbatch: ops::LinearScaling.
  at::Tensor forward(const at::Tensor& tokens, std::optional<bool> is_first_microbatch = std::nullopt);

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  std::optional<bool> is_first_microbatch = std::nullopt) override;

  torch::nn::Module& module() override { return *this; }
  nlohmann::json shape() const override;
  int64_t context() const override { return config.context; }
  at::Tensor logits(const at::Tensor& tokens) override { return forward(tokens); }
  Freedoms freedoms() const override;
  std::map<std::string, at::Tensor> weights_with_freedom() const override;
  Amaxes worst_case_amaxes() const override;
  std::shared_ptr<LanguageModel> multiplied(const Exponents& exponents,
                                            std::optional<at::ScalarType> dtype = {}) const override;
  std::shared_ptr<LanguageModel> take_multiplied(const Exponents& exponents) override;
  double norm_epsilon() const override { return config.norm_epsilon; }

  GptConfig config;

 private:
  at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache) override;
  void describe(TeamStep& step, const StepLayers& layers, const StepPositions& positions) override;
};
TORCH_MODULE(Gpt);

}  // namespace plimsoll::models
