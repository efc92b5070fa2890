#include "plimsoll/models/gpt/freedoms.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

namespace plimsoll::models {
namespace {

class GptFreedomsBuilder {
 public:
  explicit GptFreedomsBuilder(const GptConfig& config) : config_(config) {}

  Freedoms build() {
    weight({.name = "token_embedding.weight", .residual = true});
    weight({.name = "position_embedding.weight", .residual = true});
    for (int64_t i = 0; i < config_.layers; ++i) {
      attention(c10::str("blocks.", i, ".self_attention."));
      feed_forward(c10::str("blocks.", i, ".layernorm_mlp."));
    }
    norm("norm.");
    stream("norm");
    if (!config_.tie_embeddings) weight({.name = "head.weight"});
    freedoms_.values.push_back({.name = "head/output"});
    freedoms_.without = {"fc1 and its hidden values in each layernorm_mlp: GELU is not linear in scale",
                         "head and its logits: nothing that follows could take back a factor"};
    return std::move(freedoms_);
  }

 private:
  void weight(GaugedTensor tensor) { freedoms_.weights.push_back(std::move(tensor)); }
  void value(GaugedTensor tensor) { freedoms_.values.push_back(std::move(tensor)); }
  size_t pair(const std::string& part) {
    freedoms_.pairs.push_back(part);
    return freedoms_.pairs.size() - 1;
  }

  // Weight and bias of a norm. They act after the norm, whatever it reads.
  void norm(const std::string& prefix) {
    weight({.name = prefix + "weight"});
    if (config_.normalization == nn::Normalization::kLayerNorm) weight({.name = prefix + "bias"});
  }
  void stream(const std::string& path) { value({.name = path + "/stream", .residual = true}); }

  void attention(const std::string& path) {
    const std::string qkv = path + "layernorm_qkv";
    const size_t query = pair(qkv + ".query"), read = pair(qkv + ".value");
    norm(qkv + ".layer_norm_");
    stream(qkv);
    const auto part = [&](const char* name, size_t of, int sign) {
      weight({.name = c10::str(qkv, ".", name, "_weight"), .pair = of, .sign = sign});
      weight({.name = c10::str(qkv, ".", name, "_bias"), .pair = of, .sign = sign});
      value({.name = c10::str(qkv, "/", name), .pair = of, .sign = sign});
    };
    part("query", query, 1);
    part("key", query, -1);
    part("value", read, 1);
    weight({.name = path + "proj.weight", .residual = true, .pair = read, .sign = -1});
    weight({.name = path + "proj.bias", .residual = true});
    value({.name = path + "proj/output", .residual = true});
  }

  void feed_forward(const std::string& path) {
    norm(path + "layer_norm_");
    stream(path + "fc1");
    weight({.name = path + "fc1_weight"});
    weight({.name = path + "fc1_bias"});
    value({.name = path + "fc1/output"});
    weight({.name = path + "fc2_weight", .residual = true});
    weight({.name = path + "fc2_bias", .residual = true});
    value({.name = path + "fc2/output", .residual = true});
  }

  const GptConfig& config_;
  Freedoms freedoms_;
};

}  // namespace

Freedoms gpt_freedoms(const GptConfig& config) { return GptFreedomsBuilder(config).build(); }

std::map<std::string, at::Tensor> gpt_weights(const GptImpl& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    const at::Tensor values = parameter.value().detach();
    const size_t module = name.rfind('.');
    const bool is_packed = name.substr(0, module).ends_with("layernorm_qkv") &&
                           (name.substr(module) == ".weight" || name.substr(module) == ".bias");
    if (!is_packed) {
      weights.emplace(name, values);
      continue;
    }
    const int64_t rows = model.config.dim;
    int64_t first = 0;
    for (const char* part : {"query", "key", "value"}) {
      weights.emplace(c10::str(name.substr(0, module + 1), part, "_", name.substr(module + 1)),
                      values.narrow(0, first, rows));
      first += rows;
    }
  }
  return weights;
}

}  // namespace plimsoll::models
