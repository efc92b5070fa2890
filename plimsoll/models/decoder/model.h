// A decoder-only model of Hugging Face's families, made of nn layers as its DecoderConfig says. Blocks: DecoderBlock.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "plimsoll/models/decoder/block.h"
#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/stacked_model.h"
#include "plimsoll/nn/rotary.h"

namespace plimsoll::models {

class DecoderImpl : public torch::nn::Cloneable<DecoderImpl>, public StackedModel {
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

  torch::nn::Module& module() override { return *this; }
  nlohmann::json shape() const override;
  int64_t context() const override { return config.context; }
  at::Tensor logits(const at::Tensor& tokens) override { return forward(tokens); }
  Freedoms freedoms() const override;
  std::map<std::string, at::Tensor> weights_with_freedom() const override;
  Amaxes worst_case_amaxes() const override;
  std::shared_ptr<LanguageModel> multiplied(const Exponents& exponents) const override;
  double norm_epsilon() const override { return config.norm_epsilon; }

  DecoderConfig config;

 private:
  double embedding_factor() const;
  at::Tensor embed(const at::Tensor& tokens, int64_t first_position) const;
  // Turns of the positions first, first + 1, ..., by Reach; undefined where nothing turns.
  std::array<ops::RotaryTurns, 2> turns(int64_t first, int64_t count) const;
  at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache) override;
  void describe(TeamStep& step, const StepLayers& layers, int64_t first) override;

  std::vector<nn::RotaryTable> rotary_;  // by Reach; none with learned positions
};
TORCH_MODULE(Decoder);

}  // namespace plimsoll::models
