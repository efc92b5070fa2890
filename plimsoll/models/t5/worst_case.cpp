#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <map>
#include <string>

#include "plimsoll/models/t5/freedoms.h"

namespace plimsoll::models {
namespace {

// The Euclidean lengths of the rows of weight [out, in].
at::Tensor row_lengths(const at::Tensor& weight) { return weight.square().sum(1).sqrt(); }

class T5Bounds {
 public:
  explicit T5Bounds(const T5ForConditionalGenerationImpl& model)
      : config_(model.config), length_(std::sqrt(static_cast<double>(config_.d_model))) {
    for (const auto& parameter : model.named_parameters()) weights_.emplace(parameter.key(), parameter.value());
  }

  Amaxes run() {
    stack("encoder", config_.num_layers, /*reads_encoder=*/false);
    if (!config_.encoder_only) {
      stack("decoder", config_.num_decoder_layers, /*reads_encoder=*/true);
      const char* head = config_.tie_word_embeddings ? "shared" : "lm_head";
      const double factor = config_.scale_decoder_outputs ? 1 / length_ : 1;
      record("lm_head/output", product(weight(head), weight("decoder.final_layer_norm")) * factor);
    }
    return std::move(amaxes_);
  }

 private:
  at::Tensor weight(const std::string& module) const { return weights_.at(module + ".weight").to(at::kFloat); }
  void record(const std::string& name, const at::Tensor& bounds) { amaxes_[name] = bounds.max().item<float>(); }

  // Bounds of |weight x| where x [in] is a token behind a norm with these weights: [out].
  at::Tensor product(const at::Tensor& of, const at::Tensor& norm) const { return row_lengths(of * norm) * length_; }

  // Bounds of |o a|, a [heads * d_kv] an average of values v x for each head: [d_model].
  at::Tensor read_by(const at::Tensor& o, const at::Tensor& v, const at::Tensor& norm) const {
    const at::Tensor normed = v * norm;
    at::Tensor sum = at::zeros({config_.d_model});
    for (int64_t head = 0; head < config_.num_heads; ++head) {
      const int64_t first = head * config_.d_kv;
      sum += row_lengths(at::matmul(o.narrow(1, first, config_.d_kv), normed.narrow(0, first, config_.d_kv)));
    }
    return sum * length_;
  }

  void attention(const std::string& path, const at::Tensor& query_norm, const at::Tensor& key_norm) {
    record(path + ".q/output", product(weight(path + ".q"), query_norm));
    record(path + ".k/output", product(weight(path + ".k"), key_norm));
    record(path + ".v/output", product(weight(path + ".v"), key_norm));
    add(path + ".o", read_by(weight(path + ".o"), weight(path + ".v"), key_norm));
  }

  void feed_forward(const std::string& path, const at::Tensor& norm) {
    at::Tensor hidden;
    for (const char* part : {"wi", "wi_0", "wi_1"}) {
      const std::string name = c10::str(path, ".", part);
      if (!weights_.contains(name + ".weight")) continue;
      const at::Tensor output = product(weight(name), norm);
      record(name + "/output", output);
      hidden = hidden.defined() ? hidden * output : output;  // no activation function lengthens its argument
    }
    record(path + ".wo/hidden", hidden);
    add(path + ".wo", at::matmul(weight(path + ".wo").abs(), hidden));
  }

  void add(const std::string& path, const at::Tensor& bounds) {
    record(path + "/output", bounds);
    stream_ = stream_ + bounds;
  }
  at::Tensor norm(const std::string& path) {
    record(path + "/input", stream_);
    record(path + "/output", weight(path).abs() * length_);
    return weight(path);
  }

  void stack(const std::string& name, int64_t blocks, bool reads_encoder) {
    stream_ = weight("shared").abs().amax(0);
    for (int64_t i = 0; i < blocks; ++i) {
      const std::string block = c10::str(name, ".block.", i, ".layer.");
      const at::Tensor own = norm(block + "0.layer_norm");
      attention(block + "0.SelfAttention", own, own);
      if (reads_encoder) {
        attention(block + "1.EncDecAttention", norm(block + "1.layer_norm"), weight("encoder.final_layer_norm"));
      }
      const std::string last = block + (reads_encoder ? "2" : "1");
      feed_forward(last + ".DenseReluDense", norm(last + ".layer_norm"));
    }
    norm(name + ".final_layer_norm");
  }

  const T5Config& config_;
  double length_;  // of a token behind a norm, at most
  std::map<std::string, at::Tensor> weights_;
  at::Tensor stream_;  // bounds of the residual stream's channels, [d_model]
  Amaxes amaxes_;
};

}  // namespace

Amaxes worst_case_amaxes(const T5ForConditionalGenerationImpl& model) {
  const at::NoGradGuard no_grad;
  return T5Bounds(model).run();
}

}  // namespace plimsoll::models
