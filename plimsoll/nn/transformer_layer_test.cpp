#include "plimsoll/nn/transformer_layer.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/linear.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/testing.h"

namespace plimsoll::nn {
namespace {

namespace F = torch::nn::functional;
using testing::Tensors;

constexpr int64_t kDim = 24, kFfn = 40, kLayerHeads = 4;
constexpr double kNormEpsilon = 1e-5;

TransformerLayerOptions plain_options() {
  return {.hidden_dropout = 0,
          .attention_dropout = 0,
          .fuse_qkv_params = true,
          .qkv_weight_interleaved = false,
          .attn_input_format = Layout::kBshd};
}

// Takes the parameters of a layer one after the other, in their order.
class Parameters {
 public:
  explicit Parameters(const Tensors& tensors) : tensors_(tensors) {}
  at::Tensor next() { return tensors_[next_++]; }
  at::Tensor norm(const at::Tensor& x, bool rms) {
    const at::Tensor weight = next();
    return rms ? at::rms_norm(x, {kDim}, weight, kNormEpsilon)
               : at::layer_norm(x, {kDim}, weight, next(), kNormEpsilon);
  }
  at::Tensor linear(const at::Tensor& x) {
    const at::Tensor weight = next();
    return F::linear(x, weight, next());
  }

 private:
  const Tensors& tensors_;
  size_t next_ = 1;  // after the input
};

at::Tensor heads(const at::Tensor& x) { return x.unflatten(-1, {kLayerHeads, -1}).transpose(1, 2); }

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool is_causal) {
  return at::scaled_dot_product_attention(heads(q), heads(k), heads(v), {}, 0, is_causal).transpose(1, 2).flatten(2);
}

// The whole block, batch first, fused [q; k; v].
at::Tensor plain_layer(const Tensors& t, bool rms, const at::Tensor& encoder) {
  Parameters parameters(t);
  at::Tensor x = t[0];
  const std::vector<at::Tensor> qkv = parameters.linear(parameters.norm(x, rms)).chunk(3, -1);
  x = x + parameters.linear(attend(qkv[0], qkv[1], qkv[2], true));
  if (encoder.defined()) {
    const at::Tensor query = parameters.linear(parameters.norm(x, rms));
    const std::vector<at::Tensor> key_value = parameters.linear(encoder.to(x.scalar_type())).chunk(2, -1);
    x = x + parameters.linear(attend(query, key_value[0], key_value[1], false));
  }
  const at::Tensor inner = parameters.linear(parameters.norm(x, rms));
  return x + parameters.linear(F::gelu(inner, F::GELUFuncOptions().approximate("tanh")));
}

TEST(NnTransformerLayer, MatchesTheCompositionWithoutAScope) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({2, 7, kDim}), seed = torch::randn({2, 7, kDim});
  for (const Normalization kind : {Normalization::kLayerNorm, Normalization::kRmsNorm}) {
    for (const LayerType type : {LayerType::kEncoder, LayerType::kDecoder}) {
      TransformerLayerOptions options = plain_options();
      options.normalization = kind;
      options.layer_type = type;
      TransformerLayer layer(kDim, kFfn, kLayerHeads, options);
      testing::randomize(*layer);
      const at::Tensor encoder = type == LayerType::kDecoder ? torch::randn({2, 5, kDim}) : at::Tensor();
      const auto forward = [&](const at::Tensor& in) { return layer->forward(in, {.encoder_output = encoder}); };
      const auto plain = [&](const Tensors& t) { return plain_layer(t, kind == Normalization::kRmsNorm, encoder); };
      testing::expect_matches(testing::run_module(*layer, forward, x, seed), plain, testing::with_parameters(x, *layer),
                              seed);
    }
  }
}

TEST(NnTransformerLayer, ParametersHaveTheKnownNames) {
  const std::vector<std::string> names = TransformerLayer(8, 16, 2)->named_parameters().keys();
  EXPECT_EQ(names, (std::vector<std::string>{
                       "self_attention.layernorm_qkv.layer_norm_weight", "self_attention.layernorm_qkv.layer_norm_bias",
                       "self_attention.layernorm_qkv.query_weight", "self_attention.layernorm_qkv.key_weight",
                       "self_attention.layernorm_qkv.value_weight", "self_attention.layernorm_qkv.query_bias",
                       "self_attention.layernorm_qkv.key_bias", "self_attention.layernorm_qkv.value_bias",
                       "self_attention.proj.weight", "self_attention.proj.bias", "layernorm_mlp.layer_norm_weight",
                       "layernorm_mlp.layer_norm_bias", "layernorm_mlp.fc1_weight", "layernorm_mlp.fc1_bias",
                       "layernorm_mlp.fc2_weight", "layernorm_mlp.fc2_bias"}));
  EXPECT_THROW(TransformerLayer(10, 16, 3), c10::ValueError);
}

// [groups of query heads; k; v] as rows of [group, its queries then k then v].
at::Tensor interleave(const at::Tensor& rows, int64_t groups, int64_t channels) {
  const int64_t key_rows = groups * channels;
  const std::vector<at::Tensor> parts = rows.split_with_sizes({rows.size(0) - 2 * key_rows, key_rows, key_rows});
  std::vector<at::Tensor> grouped;
  for (const at::Tensor& part : parts) grouped.push_back(part.unflatten(0, {groups, part.size(0) / groups}));
  return at::cat(grouped, 1).flatten(0, 1);
}

TEST(NnTransformerLayer, ArrangementsOfTheQkvWeightGiveTheSameNumbers) {
  torch::manual_seed(2);
  const at::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({2, 7, kDim});
  for (const int64_t groups : {4, 2}) {
    TransformerLayerOptions options = plain_options();
    options.num_gqa_groups = groups;
    TransformerLayer fused(kDim, kFfn, kLayerHeads, options);
    options.qkv_weight_interleaved = true;
    TransformerLayer interleaved(kDim, kFfn, kLayerHeads, options);
    options.fuse_qkv_params = false;
    TransformerLayer parts(kDim, kFfn, kLayerHeads, options);

    const auto given = fused->named_parameters();
    for (auto& parameter : interleaved->named_parameters()) {
      const bool is_qkv = parameter.key().find("layernorm_qkv.") != std::string::npos &&
                          parameter.key().find("layer_norm_") == std::string::npos;
      const at::Tensor& value = given[parameter.key()];
      parameter.value().copy_(is_qkv ? interleave(value, groups, kDim / kLayerHeads) : value);
    }
    for (auto& parameter : parts->named_parameters()) {
      if (const at::Tensor* value = given.find(parameter.key())) parameter.value().copy_(*value);
    }
    for (const char* suffix : {"weight", "bias"}) {
      const std::string path = "self_attention.layernorm_qkv.";
      int64_t row = 0;
      for (const char* part : {"query_", "key_", "value_"}) {
        at::Tensor to = parts->named_parameters()[path + part + suffix];
        to.copy_(given[path + suffix].narrow(0, row, to.size(0)));
        row += to.size(0);
      }
    }
    const at::Tensor expected = fused->forward(x);
    EXPECT_TRUE(torch::equal(parts->forward(x), expected));
    EXPECT_TRUE(torch::equal(interleaved->forward(x), expected));
  }
}

TEST(NnTransformerLayer, ChainedLayersEqualLayersOneByOne) {
  torch::manual_seed(3);
  TransformerLayer first(kDim, kFfn, kLayerHeads, plain_options()), second(kDim, kFfn, kLayerHeads, plain_options());
  const at::Tensor x = torch::randn({2, 7, kDim});
  for (const char* name : {"fp32", "fp8", "mxfp8", "nvfp4", "mxfp4"}) {
    const at::NoGradGuard no_grad;
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
    const at::Tensor one_by_one = second->forward(first->forward(x));
    EXPECT_TRUE(torch::equal(second->advance(first->advance({.hidden = x})).value(), one_by_one));
  }
}

TEST(NnTransformerLayer, AScopeDecidesTheDtype) {
  TransformerLayer layer(kDim, kFfn, kLayerHeads, plain_options());
  const at::Tensor x = torch::randn({2, 7, kDim}).requires_grad_(true);
  at::Tensor output;
  {
    const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    output = layer->forward(x);
    const amp::Fp8Autocast off({.enabled = false});
    EXPECT_EQ(layer->forward(x).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  output.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  for (const at::Tensor& parameter : layer->parameters()) EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
}

TEST(NnTransformerLayer, SequenceFirstIsTheDefault) {
  torch::manual_seed(4);
  TransformerLayerOptions options = plain_options();
  TransformerLayer batch_first(kDim, kFfn, kLayerHeads, options);
  options.attn_input_format = TransformerLayerOptions{}.attn_input_format;
  TransformerLayer sequence_first(kDim, kFfn, kLayerHeads, options);
  const at::NoGradGuard no_grad;
  const auto given = batch_first->parameters();
  const auto taken = sequence_first->parameters();
  for (size_t i = 0; i < given.size(); ++i) at::Tensor(taken[i]).copy_(given[i]);
  const at::Tensor x = torch::randn({2, 7, kDim});
  EXPECT_TRUE(
      torch::equal(sequence_first->forward(x.transpose(0, 1).contiguous()).transpose(0, 1), batch_first->forward(x)));
}

}  // namespace
}  // namespace plimsoll::nn
