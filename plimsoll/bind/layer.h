// One call of a layer of plimsoll.pytorch, as Python describes it: Linear, LayerNormLinear or LayerNormMLP.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/bind/held_weight.h"
#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::bind {

// In the order in which ops::linear, norm_linear and norm_mlp take theirs. Linear has x, weight and bias; without
// kFc2Weight, kWeight and kBias are the only linear's.
enum LayerInput : size_t { kX, kResidual, kNormWeight, kNormBias, kWeight, kBias, kFc2Weight, kFc2Bias, kLayerInputs };
using LayerInputs = std::array<OptionalTensor, kLayerInputs>;

// The group of ranks that share the layer; two products: the first is split by columns, the second by rows.
struct ParallelCall {
  std::optional<std::string> tp_group = {};
  int64_t tp_size = 1;
  bool sequence = false;
  bool by_rows = false;
};

struct LayerCall {
  std::string recipe;  // JSON; empty: that of the scope in force; of `auto`: the scope has its controller
  std::optional<bool> is_first_microbatch = {};
  bool save_input = false;  // Linear: keep x for backward, not its codes
  std::string normalization = "layernorm";
  bool zero_centered = false;
  double epsilon = 1e-5;
  std::string activation = "gelu";  // LayerNormMLP
  std::vector<double> activation_params = {};
  std::vector<HeldWeight> held = {};  // one for each product, or none
  ParallelCall parallel = {};
};

// One for each product. state: ten tensors a product, as layer_state.h lists them. Amaxes go to the scope that
// the thread is in.
using LayerScaling = std::vector<ops::LinearScaling>;
LayerScaling layer_scaling(const LayerCall& call, const ops::SharedRecipe& recipe, at::TensorList state);

// sum: x + residual; undefined without a residual.
ops::NormOutput run_layer(const LayerInputs& inputs, const LayerCall& call, LayerScaling scaling);

}  // namespace plimsoll::bind
