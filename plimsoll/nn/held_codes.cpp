#include "plimsoll/nn/held_codes.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"

namespace plimsoll::nn {
namespace {

void hold_one(const SplitParameter& weight, const ScaledLayer& layer) {
  TORCH_CHECK(weight.parts().size() == 1, "codes: expected a layer with one weight, got ", weight.parts().size());
  hold_codes(weight.parts().front(), *layer.products().front().state);
}

}  // namespace

void hold_codes(at::Tensor parameter, ops::LinearState& state, ops::CodeSource source) {
  if (!source.weight.defined()) source.weight = parameter.detach();
  state.weight_source.hold(std::make_shared<ops::HeldWeight>(std::move(source)));
  parameter.set_requires_grad(false);
  parameter.set_data(at::empty({1}, parameter.options()).expand(parameter.sizes()));
}

void hold_codes(torch::nn::Module& root) {
  root.apply([](torch::nn::Module& module) {
    if (auto* linear = dynamic_cast<LinearImpl*>(&module)) hold_one(linear->weight, *linear);
    if (auto* linear = dynamic_cast<LayerNormLinearImpl*>(&module)) hold_one(linear->weight, *linear);
    if (auto* mlp = dynamic_cast<LayerNormMlpImpl*>(&module)) {
      hold_codes(mlp->weights.fc1_weight, *mlp->products()[0].state);
      hold_codes(mlp->weights.fc2_weight, *mlp->products()[1].state);
    }
  });
}

}  // namespace plimsoll::nn
