#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <map>
#include <string>

#include "plimsoll/models/gpt/freedoms.h"

namespace plimsoll::models {
namespace {

// A token behind a norm: `weight` times a vector no longer than sqrt(dim), and `bias`.
struct Normed {
  at::Tensor weight, bias;  // [dim]; bias undefined for RMSNorm
};

class GptBounds {
 public:
  explicit GptBounds(const GptImpl& model)
      : config_(model.config), length_(std::sqrt(static_cast<double>(config_.dim))), weights_(gpt_weights(model)) {}

  Amaxes run() {
    stream_ = weight("token_embedding.weight").abs().amax(0) + weight("position_embedding.weight").abs().amax(0);
    for (int64_t i = 0; i < config_.layers; ++i) {
      attention(c10::str("blocks.", i, ".self_attention."));
      feed_forward(c10::str("blocks.", i, ".layernorm_mlp."));
    }
    const Normed last = norm("norm", "norm.");
    const char* head = config_.tie_embeddings ? "token_embedding.weight" : "head.weight";
    record("head/output", product(weight(head), {}, last));
    return std::move(amaxes_);
  }

 private:
  at::Tensor weight(const std::string& name) const { return weights_.at(name).to(at::kFloat); }
  void record(const std::string& name, const at::Tensor& bounds) { amaxes_[name] = bounds.max().item<float>(); }

  Normed norm(const std::string& path, const std::string& prefix) {
    record(path + "/stream", stream_);
    const auto bias = weights_.find(prefix + "bias");
    return {weight(prefix + "weight"), bias == weights_.end() ? at::Tensor() : bias->second.to(at::kFloat)};
  }

  // Bounds of |W x + b|, x a token behind a norm: [out].
  at::Tensor product(const at::Tensor& of, const at::Tensor& bias, const Normed& x) const {
    at::Tensor constant = x.bias.defined() ? at::matmul(of, x.bias) : at::zeros({of.size(0)});
    if (bias.defined()) constant = constant + bias;
    return (of * x.weight).square().sum(1).sqrt() * length_ + constant.abs();
  }

  void attention(const std::string& path) {
    const std::string qkv = path + "layernorm_qkv";
    const Normed x = norm(qkv, qkv + ".layer_norm_");
    at::Tensor values;
    for (const char* part : {"query", "key", "value"}) {
      values = product(weight(c10::str(qkv, ".", part, "_weight")), weight(c10::str(qkv, ".", part, "_bias")), x);
      record(c10::str(qkv, "/", part), values);
    }
    add(path + "proj", path + "proj.", values);  // an average of values is no larger than they are
  }

  void feed_forward(const std::string& path) {
    const Normed x = norm(path + "fc1", path + "layer_norm_");
    const at::Tensor hidden = product(weight(path + "fc1_weight"), weight(path + "fc1_bias"), x);
    record(path + "fc1/output", hidden);
    add(path + "fc2", path + "fc2_", hidden);  // GELU lengthens nothing
  }

  void add(const std::string& path, const std::string& prefix, const at::Tensor& input) {
    const at::Tensor bounds = at::matmul(weight(prefix + "weight").abs(), input) + weight(prefix + "bias").abs();
    record(path + "/output", bounds);
    stream_ = stream_ + bounds;
  }

  const GptConfig& config_;
  double length_;  // of what a norm multiplies by its weight, at most
  std::map<std::string, at::Tensor> weights_;
  at::Tensor stream_;  // bounds of the residual stream's channels, [dim]
  Amaxes amaxes_;
};

}  // namespace

Amaxes worst_case_amaxes(const GptImpl& model) {
  const at::NoGradGuard no_grad;
  return GptBounds(model).run();
}

}  // namespace plimsoll::models
