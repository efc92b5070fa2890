#include "plimsoll/nn/held_codes.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"

namespace plimsoll::nn {
namespace {

ProductWeight weight_of(const SplitParameter& weight, const ScaledLayer& layer) {
  TORCH_CHECK(weight.parts().size() == 1, "codes: expected a layer with one weight, got ", weight.parts().size());
  return {"weight", weight.parts().front(), layer.products().front().state};
}

std::vector<ProductWeight> weights_of(torch::nn::Module& module) {
  if (const auto* linear = dynamic_cast<LinearImpl*>(&module)) {
    if (!linear->products().front().takes_codes()) return {};
    return {weight_of(linear->weight, *linear)};
  }
  if (const auto* linear = dynamic_cast<LayerNormLinearImpl*>(&module)) return {weight_of(linear->weight, *linear)};
  const auto* mlp = dynamic_cast<LayerNormMlpImpl*>(&module);
  if (mlp == nullptr) return {};
  return {{"fc1_weight", mlp->weights.fc1_weight, mlp->products()[0].state},
          {"fc2_weight", mlp->weights.fc2_weight, mlp->products()[1].state}};
}

}  // namespace

void hold_codes(at::Tensor parameter, ops::LinearState& state, CodeSources sources, const ops::HeldOptions& options) {
  if (sources.empty()) sources.push_back({.weight = parameter.detach()});
  state.weight_source.hold(std::make_shared<ops::HeldWeight>(std::move(sources), options));
  parameter.set_requires_grad(false);
  parameter.set_data(at::empty({1}, parameter.options()).expand(parameter.sizes()));
}

void hold_codes(torch::nn::Module& root, const std::function<CodeSources(const std::string& name)>& sources_of,
                const ops::HeldOptions& options) {
  for (const ProductWeight& product : weights_with_codes(root)) {
    hold_codes(product.weight, *product.state, sources_of ? sources_of(product.name) : CodeSources{}, options);
  }
}

std::vector<ProductWeight> weights_with_codes(torch::nn::Module& root) {
  std::vector<ProductWeight> result;
  for (const auto& item : root.named_modules()) {
    for (ProductWeight& product : weights_of(*item.value())) {
      if (!product.state->high_precision) {
        if (!item.key().empty()) product.name = item.key() + "." + product.name;
        result.push_back(std::move(product));
      }
    }
  }
  return result;
}

}  // namespace plimsoll::nn
