// A decoder-only model of Hugging Face's families, made of nn layers as its DecoderConfig says. Blocks: DecoderBlock.
#pragma once

#include <array>
#include <functional>
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

  // The same in parts, without a mask: what the first block reads of tokens int64 [batch, seq], and what a block makes of
  // [batch, seq, dim] that the one before it gave.
  nn::ResidualStream first_stream(const at::Tensor& tokens) const;
  nn::ResidualStream run_block(size_t layer, nn::ResidualStream stream);

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  std::optional<bool> is_first_microbatch = std::nullopt) override;
  // The same of padded rows. Targets of padding are to be ignored: -100.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const at::Tensor& attention_mask,
                  std::optional<bool> is_first_microbatch);
  at::Tensor packed_loss(const PackedTexts& texts, std::optional<bool> is_first_microbatch = std::nullopt) override;

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

  DecoderConfig config;

 private:
  double embedding_factor() const;
  at::Tensor embed(const at::Tensor& tokens, int64_t first_position) const;
  // The same, with its bits, of tokens at any positions: int64 [batch, seq].
  at::Tensor embed_at(const at::Tensor& tokens, const at::Tensor& positions) const;
  // Turns of positions as RotaryTable::at takes them, by Reach; undefined where nothing turns.
  template <class... Positions>
  std::array<ops::RotaryTurns, 2> turns(const Positions&... positions) const {
    std::array<ops::RotaryTurns, 2> result;
    for (size_t reach = 0; reach < rotary_.size(); ++reach) result[reach] = rotary_[reach].at(positions...);
    return result;
  }
  at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache) override;
  void describe(TeamStep& step, const StepLayers& layers, const StepPositions& positions) override;
  at::Tensor packed(const PackedTexts& texts, std::optional<bool> is_first_microbatch);
  using LayerInput = std::function<DecoderBlockInput(size_t layer, Reach reach)>;
  at::Tensor run_blocks(const at::Tensor& embedded, const LayerInput& input);

  std::vector<nn::RotaryTable> rotary_;  // by Reach; none with learned positions
};
TORCH_MODULE(Decoder);

}  // namespace plimsoll::models
