#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "plimsoll/models/decoder/freedoms.h"

namespace plimsoll::models {
namespace {

// A token behind a norm: `weight` times a vector no longer than sqrt(dim), and `bias`.
struct Normed {
  at::Tensor weight, bias;  // [dim]; bias undefined for RMSNorm
};

class DecoderBounds {
 public:
  DecoderBounds(const torch::nn::Module& model, const DecoderConfig& config)
      : config_(config),
        length_(std::sqrt(static_cast<double>(config.dim))),
        weights_(decoder_weights(model, config)) {}

  Amaxes run(double embedding_factor) {
    stream_ = weight("token_embedding.weight").abs().amax(0) * embedding_factor;
    if (config_.learned_positions) stream_ = stream_ + weight("position_embedding.weight").abs().amax(0);
    for (int64_t i = 0; i < config_.layers; ++i) {
      const std::string block = c10::str("blocks.", i, ".");
      const at::Tensor attended = branch(attention(block + "self_attention."), block + "attention_norm.");
      if (!config_.parallel_residual) stream_ = stream_ + attended;
      const at::Tensor fed = branch(feed_forward(block + "layernorm_mlp."), block + "mlp_norm.");
      stream_ = config_.parallel_residual ? stream_ + attended + fed : stream_ + fed;
    }
    const Normed last = norm("norm", "head", "norm.");
    record("head/output", product(weight(config_.ties_head ? "token_embedding.weight" : "head.weight"), {}, last));
    return std::move(amaxes_);
  }

 private:
  at::Tensor weight(const std::string& name) const { return weights_.at(name).to(at::kFloat); }
  at::Tensor weight_or_none(const std::string& name) const {
    return weights_.contains(name) ? weight(name) : at::Tensor();
  }
  void record(const std::string& name, const at::Tensor& bounds) { amaxes_[name] = bounds.max().item<float>(); }

  Normed normed(const std::string& prefix) const {
    const at::Tensor factor = weight(prefix + "weight");
    return {config_.zero_centered_norms ? factor + 1 : factor, weight_or_none(prefix + "bias")};
  }
  // reader: of what the norm gives.
  Normed norm(const std::string& path, const std::string& reader, const std::string& prefix) {
    record(path + "/stream", stream_);
    const Normed result = normed(prefix);
    record(reader + "/input", bounds_of(result, length_));
    return result;
  }
  // Bounds of a token of this length, before weight and bias.
  static at::Tensor bounds_of(const Normed& x, double length) {
    const at::Tensor bounds = x.weight.abs() * length;
    return x.bias.defined() ? bounds + x.bias.abs() : bounds;
  }
  // Queries and keys as attention reads them: a pair of channels that turns is sqrt 2 times as large, where one takes all.
  at::Tensor turned(const at::Tensor& bounds) const {
    return config_.learned_positions ? bounds : bounds * std::sqrt(2.0);
  }

  // Bounds of |W x + b|, x a token behind a norm: [out].
  at::Tensor product(const at::Tensor& of, const at::Tensor& bias, const Normed& x) const {
    at::Tensor constant = x.bias.defined() ? at::matmul(of, x.bias) : at::zeros({of.size(0)});
    if (bias.defined()) constant = constant + bias;
    return (of * x.weight).square().sum(1).sqrt() * length_ + constant.abs();
  }
  // The same of a part of a parameter.
  at::Tensor part(const std::string& prefix, const std::string& value, const Normed& x) {
    const at::Tensor bounds = product(weight(prefix + "weight"), weight_or_none(prefix + "bias"), x);
    record(value, bounds);
    return bounds;
  }

  void head_norm(const std::string& prefix, const std::string& value) {
    record(value, turned(bounds_of(normed(prefix), std::sqrt(static_cast<double>(config_.head_dim)))));
  }

  at::Tensor attention(const std::string& path) {
    const std::string qkv = path + "layernorm_qkv";
    const Normed x = norm(qkv, qkv, qkv + ".layer_norm_");
    for (const char* which : {"query", "key"}) {
      const at::Tensor bounds = part(c10::str(qkv, ".", which, "_"), c10::str(qkv, "/", which), x);
      if (!config_.norms_heads) record(c10::str(qkv, "/", which), turned(bounds));
    }
    if (config_.norms_heads) {
      head_norm(path + "query_norm.", qkv + "/normed_query");
      head_norm(path + "key_norm.", qkv + "/normed_key");
    }
    const at::Tensor values = part(qkv + ".value_", qkv + "/value", x).view({config_.groups, config_.head_dim});
    // An average of values is no larger than they are.
    return output(path + "proj", path + "proj.", values.repeat_interleave(config_.heads / config_.groups, 0).flatten());
  }

  at::Tensor feed_forward(const std::string& path) {
    const Normed x = norm(path + "fc1", path + "fc1", path + "layer_norm_");
    // SiLU and GELU lengthen nothing.
    if (!kernels::is_gated(config_.activation)) {
      return output(path + "fc2", path + "fc2_", part(path + "fc1_", path + "fc1/output", x));
    }
    const at::Tensor hidden = part(path + "gate_", path + "fc1/gate", x) * part(path + "up_", path + "fc1/up", x);
    record(path + "fc2/hidden", hidden);
    return output(path + "fc2", path + "fc2_", hidden);
  }

  at::Tensor output(const std::string& path, const std::string& prefix, const at::Tensor& input) {
    at::Tensor bounds = at::matmul(weight(prefix + "weight").abs(), input);
    if (const at::Tensor bias = weight_or_none(prefix + "bias"); bias.defined()) bounds = bounds + bias.abs();
    record(path + "/output", bounds);
    return bounds;
  }

  // Bounds of what is added to the stream.
  at::Tensor branch(const at::Tensor& bounds, const std::string& prefix) const {
    if (!config_.norms_branches) return bounds;
    return bounds_of(normed(prefix), length_);
  }

  const DecoderConfig& config_;
  double length_;  // of what a norm multiplies by its weight, at most
  std::map<std::string, at::Tensor> weights_;
  at::Tensor stream_;  // bounds of the residual stream's channels, [dim]
  Amaxes amaxes_;
};

}  // namespace

Amaxes decoder_worst_case(const torch::nn::Module& model, const DecoderConfig& config, double embedding_factor) {
  const at::NoGradGuard no_grad;
  return DecoderBounds(model, config).run(embedding_factor);
}

}  // namespace plimsoll::models
