#include "plimsoll/models/decoder/freedoms.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/nn/undrawn.h"

namespace plimsoll::models {
namespace {

class DecoderFreedomsBuilder {
 public:
  explicit DecoderFreedomsBuilder(const DecoderConfig& config) : config_(config) {}

  Freedoms build() {
    weight({.name = "token_embedding.weight", .residual = true});
    if (config_.learned_positions) weight({.name = "position_embedding.weight", .residual = true});
    for (int64_t i = 0; i < config_.layers; ++i) {
      const std::string block = c10::str("blocks.", i, ".");
      attention(block + "self_attention.");
      feed_forward(block + "layernorm_mlp.");
      if (!config_.norms_branches) continue;
      branch_norm(block + "attention_norm.");
      branch_norm(block + "mlp_norm.");
    }
    norm("norm.");
    stream("norm");
    if (!config_.ties_head) weight({.name = "head.weight"});
    value({.name = "head/input"});
    value({.name = "head/output"});
    say_what_has_none();
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
  // Norm of a branch. The stream takes what it writes; of what it reads it sees the scale through its epsilon alone.
  void branch_norm(const std::string& prefix) {
    weight({.name = prefix + "weight", .residual = true, .one_plus = config_.zero_centered_norms});
    if (config_.normalization == nn::Normalization::kLayerNorm) weight({.name = prefix + "bias", .residual = true});
  }
  // Norm of each head's queries or keys, whose weight and bias grow with what they give.
  void head_norm(const std::string& prefix, GaugedTensor tensor, const std::string& output) {
    tensor.name = prefix + "weight";
    tensor.one_plus = config_.zero_centered_norms;
    weight(tensor);
    tensor.one_plus = false;
    if (config_.normalization == nn::Normalization::kLayerNorm) {
      tensor.name = prefix + "bias";
      weight(tensor);
    }
    value({.name = output, .pair = tensor.pair, .sign = tensor.sign});
  }
  void stream(const std::string& path) { value({.name = path + "/stream", .residual = true}); }
  // A part of a parameter, with its bias, and what it computes.
  void part(const std::string& prefix, bool bias, GaugedTensor tensor) {
    const std::string output = std::move(tensor.name);
    for (const char* which : {"weight", "bias"}) {
      if (!bias && which == std::string("bias")) continue;
      tensor.name = prefix + which;
      weight(tensor);
    }
    tensor.name = output;
    tensor.channels = nullptr;
    value(std::move(tensor));
  }
  // A product that adds to the stream, and takes back what `read` has given. channels: of its columns.
  void branch(const std::string& path, const std::string& prefix, bool bias, std::optional<size_t> read,
              std::vector<int64_t> channels) {
    weight({.name = prefix + "weight",
            .residual = true,
            .pair = read,
            .sign = -1,
            .channels = read ? channels_of(1, std::move(channels)) : nullptr});
    if (bias) weight({.name = prefix + "bias", .residual = true});
    value({.name = path + "/output", .residual = true});
  }

  static std::shared_ptr<const GaugedChannels> channels_of(int64_t dim, std::vector<int64_t> channel) {
    return std::make_shared<const GaugedChannels>(GaugedChannels{.dim = dim, .channel = std::move(channel)});
  }
  static std::vector<int64_t> each_its_own(int64_t count) {
    std::vector<int64_t> channel(static_cast<size_t>(count));
    std::iota(channel.begin(), channel.end(), 0);
    return channel;
  }
  // `heads` heads, as many in a row as read one head of keys and values, with the channels of that one: of_head, below `count`.
  std::vector<int64_t> channels_of_heads(int64_t heads, const std::vector<int64_t>& of_head, int64_t count) const {
    std::vector<int64_t> channel;
    for (int64_t head = 0; head < heads; ++head) {
      for (const int64_t each : of_head) channel.push_back(head / (heads / config_.groups) * count + each);
    }
    return channel;
  }
  // Channels of a head that turn together are one.
  std::vector<int64_t> turned_channels() const {
    std::vector<int64_t> channel = each_its_own(config_.head_dim);
    if (config_.learned_positions) return channel;
    const int64_t half = nn::RotaryTable(config_.head_dim, config_.rotary).rotated() / 2;
    std::copy_n(channel.begin(), half, channel.begin() + half);
    return channel;
  }

  void attention(const std::string& path) {
    const std::string qkv = path + "layernorm_qkv";
    norm(qkv + ".layer_norm_");
    stream(qkv);
    value({.name = qkv + "/input"});
    const size_t query = pair(config_.norms_heads ? path + "query_norm" : qkv + ".query");
    const size_t read = pair(qkv + ".value");
    GaugedTensor of_query = {.name = qkv + "/query", .pair = query},
                 of_key = {.name = qkv + "/key", .pair = query, .sign = -1};
    if (config_.norms_heads) {
      // These norms have the epsilon of the others, so that what they read grows with the stream.
      part(qkv + ".query_", config_.qkv_bias, {.name = of_query.name, .residual = true});
      part(qkv + ".key_", config_.qkv_bias, {.name = of_key.name, .residual = true});
      of_query.channels = of_key.channels = channels_of(0, turned_channels());
      head_norm(path + "query_norm.", of_query, qkv + "/normed_query");
      head_norm(path + "key_norm.", of_key, qkv + "/normed_key");
    } else {
      of_query.channels = channels_of(0, channels_of_heads(config_.heads, turned_channels(), config_.head_dim));
      of_key.channels = channels_of(0, channels_of_heads(config_.groups, turned_channels(), config_.head_dim));
      part(qkv + ".query_", config_.qkv_bias, of_query);
      part(qkv + ".key_", config_.qkv_bias, of_key);
    }
    const std::vector<int64_t> of_head = each_its_own(config_.head_dim);
    part(qkv + ".value_", config_.qkv_bias,
         {.name = qkv + "/value",
          .pair = read,
          .channels = channels_of(0, channels_of_heads(config_.groups, of_head, config_.head_dim))});
    branch(path + "proj", path + "proj.", config_.output_bias, read,
           channels_of_heads(config_.heads, of_head, config_.head_dim));
  }

  void feed_forward(const std::string& path) {
    norm(path + "layer_norm_");
    stream(path + "fc1");
    value({.name = path + "fc1/input"});
    const std::vector<int64_t> hidden = each_its_own(config_.ffn_dim);
    std::optional<size_t> up;
    if (kernels::is_gated(config_.activation)) {
      up = pair(path + "up");
      part(path + "gate_", config_.mlp_bias, {.name = path + "fc1/gate"});
      part(path + "up_", config_.mlp_bias, {.name = path + "fc1/up", .pair = up, .channels = channels_of(0, hidden)});
      value({.name = path + "fc2/hidden", .pair = up});
    } else {
      if (config_.activation == kernels::Activation::kRelu) up = pair(path + "fc1");
      part(path + "fc1_", config_.mlp_bias,
           {.name = path + "fc1/output", .pair = up, .channels = up ? channels_of(0, hidden) : nullptr});
    }
    branch(path + "fc2", path + "fc2_", config_.mlp_bias, up, hidden);
  }

  void say_what_has_none() {
    std::vector<std::string>& without = freedoms_.without;
    if (kernels::is_gated(config_.activation)) {
      without.push_back("the gate in each layernorm_mlp: its activation is not linear in scale");
    } else if (config_.activation != kernels::Activation::kRelu) {
      without.push_back("fc1 and its hidden values in each layernorm_mlp: GELU is not linear in scale");
    }
    without.push_back("head and its logits: nothing that follows could take back a factor");
  }

  const DecoderConfig& config_;
  Freedoms freedoms_;
};

// As the weight is multiplied by it; undefined: its channels have no exponents.
at::Tensor channel_factors(const at::Tensor& weight, const GaugedTensor& tensor, const Exponents& exponents) {
  const std::vector<int>* of_channels = channel_exponents_of(tensor, exponents);
  if (of_channels == nullptr) return {};
  const GaugedChannels& channels = *tensor.channels;
  const auto count = static_cast<int64_t>(channels.channel.size());
  const at::Tensor factors = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t channel = channels.channel[static_cast<size_t>(i)];
    factors.mutable_data_ptr<float>()[i] =
        std::ldexp(1.0F, tensor.sign * of_channels->at(static_cast<size_t>(channel)));
  }
  return weight.dim() == 2 && channels.dim == 0 ? factors.unsqueeze(1) : factors;
}

at::Tensor multiplied_weight(const at::Tensor& weight, const GaugedTensor& tensor, const Exponents& exponents) {
  const at::Tensor channels = channel_factors(weight, tensor, exponents);
  const int exponent = exponent_of(tensor, exponents);
  if (exponent == 0 && !channels.defined()) return weight;
  at::Tensor result = tensor.one_plus ? weight + 1 : weight;
  if (channels.defined()) result = result * channels;
  if (exponent != 0) result = result * std::ldexp(1.0, exponent);
  return tensor.one_plus ? result - 1 : result;
}

Decoder undrawn_for(DecoderConfig config, const Exponents& exponents, at::ScalarType dtype) {
  config.norm_epsilon = std::ldexp(config.norm_epsilon, 2 * exponents.residual);
  config.ties_head = config.ties_head && exponents.residual == 0;
  const nn::UndrawnParameters undrawn;
  Decoder result(config);
  result->to(dtype);
  result->eval();
  return result;
}

}  // namespace

Freedoms decoder_freedoms(const DecoderConfig& config) { return DecoderFreedomsBuilder(config).build(); }

std::map<std::string, at::Tensor> decoder_weights(const torch::nn::Module& model, const DecoderConfig& config) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> weights;
  const auto add_parts = [&](const std::string& prefix, const std::string& which, const at::Tensor& values,
                             const std::vector<std::pair<const char*, int64_t>>& parts) {
    int64_t first = 0;
    for (const auto& [part, rows] : parts) {
      weights.emplace(c10::str(prefix, part, "_", which), values.narrow(0, first, rows));
      first += rows;
    }
  };
  const int64_t key_rows = config.groups * config.head_dim;
  for (const auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    const at::Tensor values = parameter.value().detach();
    const size_t last = name.find_last_of("._") + 1;  // "weight" or "bias"
    const std::string before = name.substr(0, last), which = name.substr(last);
    if (before.ends_with("layernorm_qkv.")) {
      add_parts(before, which, values,
                {{"query", config.heads * config.head_dim}, {"key", key_rows}, {"value", key_rows}});
    } else if (before.ends_with("fc1_") && kernels::is_gated(config.activation)) {
      add_parts(before.substr(0, before.size() - 4), which, values, {{"gate", config.ffn_dim}, {"up", config.ffn_dim}});
    } else {
      weights.emplace(name, values);
    }
  }
  return weights;
}

void copy_multiplied(const DecoderConfig& config, const torch::nn::Module& from, const Exponents& exponents,
                     torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto source = decoder_weights(from, config);
  auto target = decoder_weights(to, config);
  for (const GaugedTensor& tensor : decoder_freedoms(config).weights) {
    target.at(tensor.name).copy_(multiplied_weight(source.at(tensor.name), tensor, exponents));
  }
  if (target.contains("head.weight") && config.ties_head) {
    target.at("head.weight").copy_(source.at("token_embedding.weight"));
  }
}

void move_multiplied(const DecoderConfig& config, torch::nn::Module& from, const Exponents& exponents,
                     torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto weights = decoder_weights(from, config);
  auto parameters = to.named_parameters();
  const bool parts_head = config.ties_head && parameters.contains("head.weight");
  const at::Tensor head = parts_head ? weights.at("token_embedding.weight").clone() : at::Tensor();
  for (const GaugedTensor& tensor : decoder_freedoms(config).weights) {
    const at::Tensor& weight = weights.at(tensor.name);
    // One operation after the other, as above.
    if (const at::Tensor result = multiplied_weight(weight, tensor, exponents); !result.is_same(weight)) {
      weight.copy_(result);
    }
  }
  for (auto& parameter : from.named_parameters()) {
    parameters[parameter.key()].set_data(parameter.value());
    parameter.value().set_data(at::empty({0}, parameter.value().options()));
  }
  if (parts_head) parameters["head.weight"].set_data(head);
}

Freedoms DecoderImpl::freedoms() const { return decoder_freedoms(config); }
std::map<std::string, at::Tensor> DecoderImpl::weights_with_freedom() const { return decoder_weights(*this, config); }
Amaxes DecoderImpl::worst_case_amaxes() const { return decoder_worst_case(*this, config, embedding_factor()); }

std::shared_ptr<LanguageModel> DecoderImpl::multiplied(const Exponents& exponents,
                                                       std::optional<at::ScalarType> dtype) const {
  Decoder result = undrawn_for(config, exponents, dtype.value_or(token_embedding->weight.scalar_type()));
  copy_multiplied(config, *this, exponents, *result);
  return result.ptr();
}

std::shared_ptr<LanguageModel> DecoderImpl::take_multiplied(const Exponents& exponents) {
  Decoder result = undrawn_for(config, exponents, token_embedding->weight.scalar_type());
  move_multiplied(config, *this, exponents, *result);
  return result.ptr();
}

}  // namespace plimsoll::models
