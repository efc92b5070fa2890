#include "plimsoll/models/decoder/tensors.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "plimsoll/models/decoder/traits.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {
namespace {

// Names of modules in a file, those of a layer behind "LAYERS.N.". Without the norms that a family does not have.
struct DecoderNames {
  const char* root;  // of all but the head
  const char* embedding;
  const char* positions = "";
  const char* layers;
  const char* input_norm;
  std::vector<const char*> qkv;
  const char* query_norm = "self_attn.q_norm";
  const char* key_norm = "self_attn.k_norm";
  const char* proj;
  const char* attention_norm = "post_attention_layernorm";  // of the branch
  const char* mlp_input_norm;
  std::vector<const char*> fc1;  // the gate first
  const char* fc2;
  const char* mlp_norm = "post_feedforward_layernorm";  // of the branch
  const char* norm;
  const char* head = "lm_head";
  StoredOrder matrices = StoredOrder::kRows, qkv_order = StoredOrder::kRows;
};

DecoderNames llama_names() {
  return {.root = "model.",
          .embedding = "model.embed_tokens",
          .layers = "model.layers.",
          .input_norm = "input_layernorm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .proj = "self_attn.o_proj",
          .mlp_input_norm = "post_attention_layernorm",
          .fc1 = {"mlp.gate_proj", "mlp.up_proj"},
          .fc2 = "mlp.down_proj",
          .norm = "model.norm"};
}

DecoderNames names_of(DecoderFamily family) {
  switch (family) {
    case DecoderFamily::kLlama:
    case DecoderFamily::kMistral:
    case DecoderFamily::kQwen2:
    case DecoderFamily::kQwen3:
      return llama_names();
    case DecoderFamily::kGemma3Text: {
      DecoderNames names = llama_names();
      names.mlp_input_norm = "pre_feedforward_layernorm";
      return names;
    }
    case DecoderFamily::kGpt2:
      return {.root = "transformer.",
              .embedding = "transformer.wte",
              .positions = "transformer.wpe",
              .layers = "transformer.h.",
              .input_norm = "ln_1",
              .qkv = {"attn.c_attn"},
              .proj = "attn.c_proj",
              .mlp_input_norm = "ln_2",
              .fc1 = {"mlp.c_fc"},
              .fc2 = "mlp.c_proj",
              .norm = "transformer.ln_f",
              .matrices = StoredOrder::kTransposed,
              .qkv_order = StoredOrder::kTransposed};
    case DecoderFamily::kGptNeox:
      return {.root = "gpt_neox.",
              .embedding = "gpt_neox.embed_in",
              .layers = "gpt_neox.layers.",
              .input_norm = "input_layernorm",
              .qkv = {"attention.query_key_value"},
              .proj = "attention.dense",
              .mlp_input_norm = "post_attention_layernorm",
              .fc1 = {"mlp.dense_h_to_4h"},
              .fc2 = "mlp.dense_4h_to_h",
              .norm = "gpt_neox.final_layer_norm",
              .head = "embed_out",
              .qkv_order = StoredOrder::kHeadsInTurn};
  }
  runtime::unexpected("decoder: family", static_cast<int>(family));
}

class DecoderTensorLister {
 public:
  explicit DecoderTensorLister(const DecoderConfig& config) : config_(config), names_(names_of(config.family)) {}

  std::vector<DecoderTensor> run() {
    matrix("token_embedding.weight", names_.embedding, config_.vocabulary);
    if (config_.learned_positions) matrix("position_embedding.weight", names_.positions, config_.context);
    for (int64_t i = 0; i < config_.layers; ++i) layer(std::to_string(i));
    norm("norm.", names_.norm, config_.dim);
    if (!config_.ties_head) matrix("head.weight", names_.head, config_.vocabulary);
    return std::move(tensors_);
  }

 private:
  void layer(const std::string& number) {
    const std::string ours = "blocks." + number + ".", theirs = names_.layers + number + ".";
    const std::string attention = ours + "self_attention.", mlp = ours + "layernorm_mlp.";
    const int64_t query_rows = config_.heads * config_.head_dim, key_rows = config_.groups * config_.head_dim;
    norm(attention + "layernorm_qkv.layer_norm_", theirs + names_.input_norm, config_.dim);
    linear(attention + "layernorm_qkv.", theirs, names_.qkv, {query_rows, key_rows, key_rows},
           {.columns = config_.dim, .bias = config_.qkv_bias, .order = names_.qkv_order});
    if (config_.norms_heads) {
      norm(attention + "query_norm.", theirs + names_.query_norm, config_.head_dim);
      norm(attention + "key_norm.", theirs + names_.key_norm, config_.head_dim);
    }
    linear(attention + "proj.", theirs, {names_.proj}, {config_.dim},
           {.columns = query_rows, .bias = config_.output_bias, .order = names_.matrices});
    norm(mlp + "layer_norm_", theirs + names_.mlp_input_norm, config_.dim);
    linear(mlp + "fc1_", theirs, names_.fc1, std::vector<int64_t>(names_.fc1.size(), config_.ffn_dim),
           {.columns = config_.dim, .bias = config_.mlp_bias, .order = names_.matrices});
    linear(mlp + "fc2_", theirs, {names_.fc2}, {config_.dim},
           {.columns = config_.ffn_dim, .bias = config_.mlp_bias, .order = names_.matrices});
    if (config_.norms_branches) {
      norm(ours + "attention_norm.", theirs + names_.attention_norm, config_.dim);
      norm(ours + "mlp_norm.", theirs + names_.mlp_norm, config_.dim);
    }
  }

  struct LinearShape {
    int64_t columns;
    bool bias;
    StoredOrder order;
  };

  // A part for each name; one name has all rows.
  void linear(const std::string& parameter, const std::string& prefix, const std::vector<const char*>& names,
              const std::vector<int64_t>& rows, const LinearShape& shape) {
    DecoderTensor weight{.parameter = parameter + "weight", .shape = {0, shape.columns}, .order = shape.order};
    // A vector has nothing to transpose.
    const StoredOrder bias_order = shape.order == StoredOrder::kTransposed ? StoredOrder::kRows : shape.order;
    DecoderTensor bias{.parameter = parameter + "bias", .shape = {0}, .order = bias_order};
    const bool transposed = shape.order == StoredOrder::kTransposed, fused = names.size() == 1;
    for (size_t i = 0; i < names.size(); ++i) {
      const int64_t count = fused ? std::accumulate(rows.begin(), rows.end(), int64_t{0}) : rows[i];
      const std::vector<int64_t> stored =
          transposed ? std::vector{shape.columns, count} : std::vector{count, shape.columns};
      weight.shape[0] += count;
      weight.parts.push_back({prefix + names[i] + ".weight", stored, count});
      bias.shape[0] += count;
      bias.parts.push_back({prefix + names[i] + ".bias", {count}, count});
    }
    tensors_.push_back(std::move(weight));
    if (shape.bias) tensors_.push_back(std::move(bias));
  }

  void matrix(const std::string& parameter, const std::string& name, int64_t rows) {
    const std::vector<int64_t> shape = {rows, config_.dim};
    tensors_.push_back({.parameter = parameter, .shape = shape, .parts = {{name + ".weight", shape, rows}}});
  }

  void norm(const std::string& parameter, const std::string& name, int64_t channels) {
    const auto vector = [&](const char* which) {
      tensors_.push_back(
          {.parameter = parameter + which, .shape = {channels}, .parts = {{name + "." + which, {channels}, channels}}});
    };
    vector("weight");
    if (config_.normalization == nn::Normalization::kLayerNorm) vector("bias");
  }

  const DecoderConfig& config_;
  DecoderNames names_;
  std::vector<DecoderTensor> tensors_;
};

}  // namespace

std::vector<DecoderTensor> decoder_tensors(const DecoderConfig& config) { return DecoderTensorLister(config).run(); }

ParameterShapes decoder_parameter_shapes(const DecoderConfig& config) {
  ParameterShapes shapes;
  for (const DecoderTensor& tensor : decoder_tensors(config)) shapes[tensor.parameter] = tensor.shape;
  return shapes;
}

std::vector<std::string> other_names(const DecoderConfig& config, const std::string& name) {
  const DecoderNames names = names_of(config.family);
  if (name.starts_with(names.root)) return {name.substr(std::string_view(names.root).size())};
  if (name == std::string(names.head) + ".weight") return {"lm_head.weight"};
  return {};
}

std::string head_module(const DecoderConfig& config) { return names_of(config.family).head; }

std::string embedding_module(const DecoderConfig& config) { return names_of(config.family).embedding; }

bool is_ignored(const DecoderConfig& config, const std::string& name) {
  constexpr std::array<std::string_view, 5> kBuffers = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                                        ".attention.masked_bias", "rotary_emb.inv_freq"};
  const bool is_head = name == "lm_head.weight" || name == std::string(names_of(config.family).head) + ".weight";
  return (config.ties_head && is_head) ||
         std::any_of(kBuffers.begin(), kBuffers.end(), [&](std::string_view buffer) { return name.ends_with(buffer); });
}

at::Tensor rows_of(const at::Tensor& stored, StoredOrder order, const DecoderConfig& config) {
  switch (order) {
    case StoredOrder::kRows:
      return stored;
    case StoredOrder::kTransposed:
      return stored.t();
    case StoredOrder::kHeadsInTurn:
      return stored.unflatten(0, {config.heads, 3, config.head_dim}).transpose(0, 1).flatten(0, 2);
  }
  runtime::unexpected("decoder: order", static_cast<int>(order));
}

at::Tensor stored_of(const at::Tensor& rows, StoredOrder order, const DecoderConfig& config) {
  switch (order) {
    case StoredOrder::kRows:
      return rows;
    case StoredOrder::kTransposed:
      return rows.t();
    case StoredOrder::kHeadsInTurn:
      return rows.unflatten(0, {3, config.heads, config.head_dim}).transpose(0, 1).flatten(0, 2);
  }
  runtime::unexpected("decoder: order", static_cast<int>(order));
}

std::map<std::string, at::Tensor> stored_parts(const DecoderTensor& parameter, const DecoderConfig& config,
                                               const at::Tensor& tensor) {
  std::map<std::string, at::Tensor> result;
  int64_t first = 0;
  for (const StoredPart& part : parameter.parts) {
    result.emplace(part.name, stored_of(tensor.narrow(0, first, part.rows), parameter.order, config));
    first += part.rows;
  }
  return result;
}

}  // namespace plimsoll::models
