// A decoder-only model of Hugging Face's families, made of nn layers as its DecoderConfig says. Children:
// token_embedding, position_embedding where positions are learned, blocks.N (DecoderBlock), norm, and head unless it is
// tied to the token embedding.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <optional>
#include <vector>

#include "plimsoll/models/decoder/block.h"
#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/language_head.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/nn/embedding.h"
#include "plimsoll/nn/rotary.h"

namespace plimsoll::models {

class DecoderImpl : public torch::nn::Cloneable<DecoderImpl>, public LanguageModel {
 public:
  explicit DecoderImpl(const DecoderConfig& config);
  void reset() override;
  // As transformers draws them: matrices normal(0, initializer_range), biases 0, norms the identity. Draws from
  // `generator`, by default torch's own, so the seed alone decides.
  void reset_parameters(std::optional<at::Generator> generator = std::nullopt);

  // tokens int64 [batch, seq], seq <= context -> fp32 logits [batch, seq, vocabulary]. The residual stream is in the
  // scope's high-precision dtype, outside a scope in that of the embedding, and so is the head's product.
  // attention_mask [batch, seq], nonzero where there is a token, undefined: everywhere. The tokens of a row have the
  // positions 0, 1, ... wherever its padding stands, and the bits that they have without padding; logits of padding are
  // not specified.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& attention_mask = {},
                     std::optional<bool> is_first_microbatch = std::nullopt);

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  std::optional<bool> is_first_microbatch = std::nullopt) override;
  // The same of padded rows. Targets of padding are to be ignored: -100.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const at::Tensor& attention_mask,
                  std::optional<bool> is_first_microbatch);
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

  DecoderConfig config;
  nn::Embedding token_embedding{nullptr}, position_embedding{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  nn::Norm norm{nullptr};
  nn::Linear head{nullptr};  // none if tied

 private:
  double embedding_factor() const;
  at::Tensor embed(const at::Tensor& tokens, int64_t first_position) const;
  // Turns of the positions first, first + 1, ..., by Reach; undefined where nothing turns.
  std::array<ops::RotaryTurns, 2> turns(int64_t first, int64_t count) const;
  // Hidden states that the head reads.
  at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache);
  LanguageHead reader() const;

  std::vector<nn::RotaryTable> rotary_;  // by Reach; none with learned positions
  std::shared_ptr<ops::LinearState> tied_head_;
};
TORCH_MODULE(Decoder);

}  // namespace plimsoll::models
