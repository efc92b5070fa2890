// A GPT: learned positions, pre-norm blocks (LayerNorm or RMSNorm), GELU (tanh), final norm, head without bias.
// Children: token_embedding, position_embedding, blocks.N (TransformerLayer, fused [q; k; v]), norm, and head unless
// the head is tied to the token embedding.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <optional>

#include "plimsoll/models/gpt/config.h"
#include "plimsoll/models/language_head.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/nn/embedding.h"
#include "plimsoll/nn/layer_norm.h"
#include "plimsoll/nn/transformer_layer.h"

namespace plimsoll::models {

class GptImpl : public torch::nn::Cloneable<GptImpl>, public LanguageModel {
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
  at::Tensor extend(const at::Tensor& tokens, TokenCache& cache) override;
  // As extend(), with its bits, by a team of threads: of one token a row that follows others. Undefined, and nothing has
  // changed, where the layers must do it: in training, under a watch or a scope, with hooks.
  at::Tensor step(const at::Tensor& tokens, TokenCache& cache);

  torch::nn::Module& module() override { return *this; }
  nlohmann::json shape() const override;
  int64_t context() const override { return config.context; }
  at::Tensor logits(const at::Tensor& tokens) override { return forward(tokens); }
  TokenCache make_cache(const TokenCacheOptions& options = {}) const override {
    return {config.layers, options.capacity.value_or(config.context), options.format};
  }
  std::vector<Unit> units() override;  // the blocks
  void checkpoint_activations(bool enabled) override;
  Freedoms freedoms() const override;
  std::map<std::string, at::Tensor> weights_with_freedom() const override;
  Amaxes worst_case_amaxes() const override;
  std::shared_ptr<LanguageModel> multiplied(const Exponents& exponents) const override;
  double norm_epsilon() const override { return config.norm_epsilon; }

  GptConfig config;
  nn::Embedding token_embedding{nullptr}, position_embedding{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  nn::Norm norm{nullptr};
  nn::Linear head{nullptr};  // none if tied

 private:
  // Hidden states that the head reads.
  at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache);
  at::Tensor run(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache);
  LanguageHead reader() const;

  std::shared_ptr<ops::LinearState> tied_head_;
};
TORCH_MODULE(Gpt);

}  // namespace plimsoll::models
