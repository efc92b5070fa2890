// A decoder-only model made of embeddings, blocks one after another, a norm and a head. Children: token_embedding,
// position_embedding where positions are learned, blocks.N, norm, and head unless it is tied to the token embedding.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <optional>
#include <vector>

#include "plimsoll/models/language_head.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/models/team/layers.h"
#include "plimsoll/nn/embedding.h"
#include "plimsoll/nn/layer_norm.h"

namespace plimsoll::models {

class StackedModel : public LanguageModel {
 public:
  at::Tensor extend(const at::Tensor& tokens, TokenCache& cache, const Extension& extension = {}) override;
  // As extend(), with its bits, by a team of threads: of one token a row that follows others. Undefined, and nothing has
  // changed, where the layers must do it: in training, under a watch or a scope, with hooks.
  at::Tensor step(const at::Tensor& tokens, TokenCache& cache);
  at::Tensor extend_texts(std::span<const TextTokens> texts) override;
  TokenCache make_cache(const TokenCacheOptions& options = {}) const override {
    return {static_cast<int64_t>(blocks->size()), options};
  }
  std::vector<Unit> units() override;  // the blocks
  void checkpoint_activations(bool enabled) override;

  nn::Embedding token_embedding{nullptr}, position_embedding{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  nn::Norm norm{nullptr};
  nn::Linear head{nullptr};  // none if tied

 protected:
  // Hidden states [batch, seq, dim] that the head reads.
  virtual at::Tensor normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch,
                                TokenCache* cache) = 0;
  // Positions of a step's rows: one for all, or int64 [rows].
  struct StepPositions {
    int64_t first = 0;
    at::Tensor each = {};
  };
  // Adds the blocks to a step of tokens at the positions, and what the model does to the embedding.
  virtual void describe(TeamStep& step, const StepLayers& layers, const StepPositions& positions) = 0;

  void make_head(bool tied);
  LanguageHead reader() const;

  // Deviations of the matrices: of all, and of those that write to the residual stream. Norms begin as `norm`, biases as
  // 0. Draws from `generator`, by default torch's own, so the seed alone decides.
  struct Initial {
    double deviation, stream_deviation;
    double norm = 1;
  };
  void draw_parameters(const Initial& initial, std::optional<at::Generator> generator);

 private:
  // Hidden states of tokens that follow those in the cache, also where texts have unlike lengths. counts int64 [batch]:
  // tokens of each row, which come first, of which a text needs room; undefined: all. States behind them are not specified.
  at::Tensor read(const at::Tensor& tokens, const at::Tensor& counts, TokenCache& cache, bool is_first);
  // The step of the tokens, int64 [rows], without its caches; none where the layers must do it.
  std::optional<TeamStep> step_of(const at::Tensor& tokens, const StepPositions& positions,
                                  std::span<const AdaptedRows> adapted = {});
  at::Tensor step(std::span<const TextTokens> texts);  // undefined: as step()
  void check_text(const TextTokens& text) const;

  std::shared_ptr<ops::LinearState> tied_head_;
};

}  // namespace plimsoll::models
