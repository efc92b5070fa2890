// Layers whose weights are codes: a byte an element of E4M3, half a byte of E2M1, and activations in the dtype that the
// weight had. For inference alone E4M3 has a scale a row; a layer whose input may have a gradient: ops::HeldOptions.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::nn {

using CodeSources = std::vector<ops::CodeSource>;

// From here on the product of `state` multiplies by codes of `sources`, one after another by rows, made when they are
// first needed. The parameter keeps shape and dtype and gives up its memory; without a source the codes are of its
// values.
void hold_codes(at::Tensor parameter, ops::LinearState& state, CodeSources sources = {},
                const ops::HeldOptions& options = {});

struct ProductWeight {
  std::string name;  // of the parameter: "blocks.0.layernorm_mlp.fc1_weight"
  at::Tensor weight;
  std::shared_ptr<ops::LinearState> state;
};

// Weights of all nn::Linear, LayerNormLinear and LayerNormMlp under `root`, itself included, but for what is kept in high
// precision.
std::vector<ProductWeight> weights_with_codes(torch::nn::Module& root);

// The same for those; sources_of hears the name of each.
void hold_codes(torch::nn::Module& root, const std::function<CodeSources(const std::string& name)>& sources_of = {},
                const ops::HeldOptions& options = {});

}  // namespace plimsoll::nn
