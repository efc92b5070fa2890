#include "plimsoll/models/t5/freedoms.h"

#include <c10/util/StringUtil.h>

namespace plimsoll::models {
namespace {

using kernels::Activation;

class T5FreedomsBuilder {
 public:
  explicit T5FreedomsBuilder(const T5Config& config) : config_(config) {}

  Freedoms build() {
    weight({.name = "shared", .residual = true});
    stack("encoder", config_.num_layers, /*reads_encoder=*/false);
    if (!config_.encoder_only) {
      stack("decoder", config_.num_decoder_layers, /*reads_encoder=*/true);
      if (!config_.tie_word_embeddings) weight({.name = "lm_head"});
      freedoms_.values.push_back({.name = "lm_head/output"});
    }
    if (!linear_part().has_value()) {
      freedoms_.without.push_back("the feed-forward's hidden values: their activation function is not linear in scale");
    }
    return std::move(freedoms_);
  }

 private:
  void weight(GaugedTensor tensor) {
    tensor.name += ".weight";
    freedoms_.weights.push_back(std::move(tensor));
  }
  void value(GaugedTensor tensor, const char* place) {
    tensor.name += place;
    freedoms_.values.push_back(std::move(tensor));
  }
  size_t pair(const std::string& module) {
    freedoms_.pairs.push_back(module);
    return freedoms_.pairs.size() - 1;
  }

  void norm(const std::string& name) {
    weight({.name = name});
    value({.name = name, .residual = true}, "/input");
    value({.name = name}, "/output");
  }

  // Adds to the residual stream, and takes back what `of` has given.
  void output(const std::string& name, std::optional<size_t> of) {
    weight({.name = name, .residual = true, .pair = of, .sign = -1});
    value({.name = name, .residual = true}, "/output");
  }

  void attention(const std::string& path) {
    const size_t query = pair(path + ".q"), read = pair(path + ".v");
    for (const GaugedTensor& tensor : std::vector<GaugedTensor>{{.name = path + ".q", .pair = query},
                                                                {.name = path + ".k", .pair = query, .sign = -1},
                                                                {.name = path + ".v", .pair = read}}) {
      weight(tensor);
      value(tensor, "/output");
    }
    output(path + ".o", read);
  }

  // The part of the feed-forward block that its hidden values are proportional to, or none.
  std::optional<std::string> linear_part() const {
    if (config_.gated()) return "wi_1";
    return config_.feed_forward == Activation::kRelu ? std::optional<std::string>("wi") : std::nullopt;
  }

  void feed_forward(const std::string& path) {
    const std::optional<std::string> part = linear_part();
    const std::optional<size_t> up = part ? std::optional(pair(path + "." + *part)) : std::nullopt;
    for (const char* name :
         config_.gated() ? std::vector<const char*>{"wi_0", "wi_1"} : std::vector<const char*>{"wi"}) {
      const GaugedTensor tensor{.name = c10::str(path, ".", name), .pair = part == name ? up : std::nullopt};
      weight(tensor);
      value(tensor, "/output");
    }
    value({.name = path + ".wo", .pair = up}, "/hidden");
    output(path + ".wo", up);
  }

  void stack(const std::string& name, int64_t blocks, bool reads_encoder) {
    for (int64_t i = 0; i < blocks; ++i) {
      const std::string block = c10::str(name, ".block.", i, ".layer.");
      norm(block + "0.layer_norm");
      attention(block + "0.SelfAttention");
      if (i == 0 || config_.relative_bias_in_each_layer)
        weight({.name = block + "0.SelfAttention.relative_attention_bias"});
      if (reads_encoder) {
        norm(block + "1.layer_norm");
        attention(block + "1.EncDecAttention");
      }
      const std::string last = block + (reads_encoder ? "2" : "1");
      norm(last + ".layer_norm");
      feed_forward(last + ".DenseReluDense");
    }
    norm(name + ".final_layer_norm");
  }

  const T5Config& config_;
  Freedoms freedoms_;
};

}  // namespace

Freedoms t5_freedoms(const T5Config& config) { return T5FreedomsBuilder(config).build(); }

}  // namespace plimsoll::models
