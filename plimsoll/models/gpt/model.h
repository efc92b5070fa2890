// A GPT: learned positions, pre-norm blocks (LayerNorm or RMSNorm), GELU (tanh), final norm, head without bias.
// Children: token_embedding, position_embedding, blocks.N (TransformerLayer, fused [q; k; v]), norm, and head unless
// the head is tied to the token embedding.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <optional>
#include <vector>

#include "plimsoll/nn/embedding.h"
#include "plimsoll/nn/layer_norm.h"
#include "plimsoll/nn/transformer_layer.h"

namespace plimsoll::models {

struct GptConfig {
  int64_t vocabulary = 256;
  int64_t layers = 4;
  int64_t dim = 256;
  int64_t heads = 4;            // must divide dim
  int64_t context = 256;        // tokens that the model can see
  bool tie_embeddings = false;  // the head reads token_embedding.weight, as GPT-2's
  double dropout = 0.0;         // of embeddings, attention and hidden states, while training
  nn::Normalization normalization = nn::Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
};

// What the model has seen of a batch of texts.
class GptCache {
 public:
  explicit GptCache(const GptConfig& config)
      : layers_(static_cast<size_t>(config.layers), nn::KeyValueCache(config.context)) {}

  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length(); }  // tokens
  int64_t capacity() const { return layers_.empty() ? 0 : layers_.front().capacity(); }
  void clear() {
    for (nn::KeyValueCache& layer : layers_) layer.clear();
  }

 private:
  friend class GptImpl;
  std::vector<nn::KeyValueCache> layers_;
};

class GptImpl : public torch::nn::Cloneable<GptImpl> {
 public:
  explicit GptImpl(const GptConfig& config);
  void reset() override;
  // As GPT-2: matrices normal(0, 0.02), those that write to the residual stream less by sqrt(2 layers); biases 0, norms
  // the identity. Draws from `generator`, by default torch's own, so the seed alone decides.
  void reset_parameters(std::optional<at::Generator> generator = std::nullopt);

  // tokens int64 [batch, seq], seq <= context -> fp32 logits [batch, seq, vocabulary]. The residual stream is in the
  // scope's high-precision dtype, and so is the head's product. is_first_microbatch: ops::LinearScaling.
  at::Tensor forward(const at::Tensor& tokens, std::optional<bool> is_first_microbatch = std::nullopt);

  // Mean cross entropy over all targets, int64 [batch, seq], in fp32. A large vocabulary's logits are never held whole:
  // ops::linear_cross_entropy.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  std::optional<bool> is_first_microbatch = std::nullopt);

  // Generation: the logits of `tokens` [batch, seq], which follow those in the cache; they join it. Weights
  // are converted when the cache is empty and kept after that. Records no gradients; call eval() first.
  at::Tensor extend(const at::Tensor& tokens, GptCache& cache);

  // Whether backward computes each block again from its input, of which alone forward keeps anything.
  void checkpoint_activations(bool enabled);

  GptConfig config;
  nn::Embedding token_embedding{nullptr}, position_embedding{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  nn::Norm norm{nullptr};
  nn::Linear head{nullptr};  // none if tied

 private:
  // What the head reads.
  at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, GptCache* cache);
  at::Tensor run(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, GptCache* cache);
  at::Tensor logits(const at::Tensor& hidden, std::optional<bool> is_first_microbatch);

  std::shared_ptr<ops::LinearState> tied_head_;
};
TORCH_MODULE(Gpt);

}  // namespace plimsoll::models
