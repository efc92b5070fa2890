// A decoder-only model: it predicts each token of a text from those before it. What trains, shards, gauges or generates
// knows models by this interface alone; families.h makes them.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/freedoms.h"
#include "plimsoll/models/packed_texts.h"
#include "plimsoll/models/paged_model.h"
#include "plimsoll/nn/forward_hooks.h"

namespace plimsoll::models {

// Arguments of extend() beside the tokens.
struct Extension {
  // [batch, seq], nonzero where there is a token; undefined: everywhere. Padding may stand anywhere: a row has the bits
  // that it has alone, here and in later calls.
  at::Tensor attention_mask = {};
  bool all_logits = false;  // of every token: fp32 [batch, seq, vocabulary], without meaning for padding
  // An empty cache, too, is filled with the weights as they were converted before.
  bool keeps_weights = false;
};

class LanguageModel : public PagedModel {
 public:
  // Parameters and buffers by name, train(), eval().
  virtual torch::nn::Module& module() = 0;
  // Description of the model in a checkpoint: families.h makes one of the same shape from it.
  virtual nlohmann::json shape() const = 0;

  // Mean cross entropy over all targets, in fp32. tokens, targets int64 [batch, seq]. is_first_microbatch:
  // ops::LinearScaling.
  virtual at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                          std::optional<bool> is_first_microbatch = std::nullopt) = 0;
  // Mean cross entropy over the targets of all texts that count, at least one, in fp32. A token of a text has the bits
  // that it has alone, where no scale of a recipe depends on other texts.
  virtual at::Tensor packed_loss(const PackedTexts& texts, std::optional<bool> is_first_microbatch = std::nullopt);
  // fp32 [batch, seq, vocabulary].
  virtual at::Tensor logits(const at::Tensor& tokens) = 0;

  // Generation: the logits of `tokens` int64 [batch, seq], which follow those in the cache and join it: fp32 [batch, 1,
  // vocabulary], of each row's last token. With an empty cache this is the prefill, later a step of decoding. Weights are
  // converted when the cache is empty and kept after that. Records no gradients; call eval() first.
  virtual at::Tensor extend(const at::Tensor& tokens, TokenCache& cache, const Extension& extension = {}) = 0;
  int64_t prepare(TokenCache& cache) override;

  // A part of the model that can get its parameters just before it computes, and lose them after.
  struct Unit {
    std::shared_ptr<torch::nn::Module> module;
    nn::ForwardHooks* hooks;  // around its forward pass
  };
  virtual std::vector<Unit> units() = 0;
  // Whether backward computes each unit again from its input, of which alone forward keeps anything.
  virtual void checkpoint_activations(bool enabled) = 0;

  // The exact powers of two that gauge may multiply weights by; the weights by the names that they have there, which
  // share storage with the model; and for each value there a bound that no input exceeds.
  virtual Freedoms freedoms() const = 0;
  virtual std::map<std::string, at::Tensor> weights_with_freedom() const = 0;
  virtual Amaxes worst_case_amaxes() const = 0;
  // The same function, in FP32 with the same bits, with multiplied weights, which dtype rounds; none: their own. In eval
  // mode.
  virtual std::shared_ptr<LanguageModel> multiplied(const Exponents& exponents,
                                                    std::optional<at::ScalarType> dtype = {}) const = 0;
  // The same of this model's own memory: it has no parameters after that.
  virtual std::shared_ptr<LanguageModel> take_multiplied(const Exponents& exponents) = 0;
  virtual double norm_epsilon() const = 0;
};

}  // namespace plimsoll::models
