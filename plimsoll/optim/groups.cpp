#include "plimsoll/optim/groups.h"

namespace plimsoll::optim {

std::vector<NamedGroup> one_group(const NamedParameters& parameters, const torch::optim::AdamWOptions& options) {
  NamedGroup group{{}, options};
  for (const auto& item : parameters) group.parameters.emplace_back(item.key(), item.value());
  return {group};
}

std::vector<NamedGroup> decay_groups(const NamedParameters& parameters, const torch::optim::AdamWOptions& options) {
  NamedGroup decayed{{}, options}, kept{{}, options};
  kept.options.weight_decay(0);
  for (const auto& item : parameters) {
    if (!item.value().requires_grad()) continue;
    (item.value().dim() >= 2 ? decayed : kept).parameters.emplace_back(item.key(), item.value());
  }
  return {decayed, kept};
}

}  // namespace plimsoll::optim
