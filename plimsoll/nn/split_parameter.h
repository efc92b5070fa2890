// A matrix or vector whose rows belong to several parameters: one "weight", or "query_weight", "key_weight", ...
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace plimsoll::nn {

// Rows of one named part, as TE's parameters_split; its parameters are NAME_weight and NAME_bias.
struct ParameterPart {
  std::string name;
  int64_t rows = 0;
};

class SplitParameter {
 public:
  SplitParameter() = default;  // no parameter: joined() is undefined
  // `suffix` is "weight" or "bias"; `sizes` are those of the whole, rows first. Without parts there is one parameter.
  SplitParameter(torch::nn::Module& module, const std::string& suffix, const std::vector<ParameterPart>& parts,
                 const std::vector<int64_t>& sizes);

  // The whole, rows in the order of the parts; the parameter itself if there is but one.
  at::Tensor joined() const;
  // A joined copy has no history of changes, so a cache of it must ask here: throws if is_first_microbatch is false and
  // a part has changed since the call with true.
  void check_unchanged(std::optional<bool> is_first_microbatch);

  const std::vector<at::Tensor>& parts() const { return parts_; }

 private:
  std::vector<at::Tensor> parts_;
  int64_t version_ = -1;
};

}  // namespace plimsoll::nn
