// Parameters with their names, in groups that share options.
#pragma once

#include <torch/optim/adamw.h>

#include <string>
#include <utility>
#include <vector>

namespace plimsoll::optim {

struct NamedGroup {
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  torch::optim::AdamWOptions options;
};

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

// All parameters, one group.
std::vector<NamedGroup> one_group(const NamedParameters& parameters, const torch::optim::AdamWOptions& options);

// Two groups: matrices and embeddings with the options' weight decay; vectors (biases and norm weights) without. Frozen
// parameters are in none.
std::vector<NamedGroup> decay_groups(const NamedParameters& parameters, const torch::optim::AdamWOptions& options);

}  // namespace plimsoll::optim
