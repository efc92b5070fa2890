#include "plimsoll/nn/split_parameter.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>

#include "plimsoll/nn/checks.h"

namespace plimsoll::nn {

SplitParameter::SplitParameter(torch::nn::Module& module, const std::string& suffix,
                               const std::vector<ParameterPart>& parts, const std::vector<int64_t>& sizes) {
  for (const int64_t size : sizes) check_size("linear", "sizes", size, 0);
  if (parts.empty()) {
    parts_.push_back(module.register_parameter(suffix, at::empty(sizes)));
    return;
  }
  std::vector<int64_t> part_sizes = sizes;
  int64_t rows = 0;
  for (const ParameterPart& part : parts) {
    check_size("parameters_split", "rows", part.rows, 0);
    part_sizes[0] = part.rows;
    rows += part.rows;
    parts_.push_back(module.register_parameter(part.name + "_" + suffix, at::empty(part_sizes)));
  }
  TORCH_CHECK_VALUE(rows == sizes[0], "parameters_split: expected ", sizes[0], " rows in all, got ", rows);
}

at::Tensor SplitParameter::joined() const {
  if (parts_.empty()) return {};
  return parts_.size() == 1 ? parts_.front() : at::cat(parts_);
}

void SplitParameter::check_unchanged(std::optional<bool> is_first_microbatch) {
  if (!is_first_microbatch) return;
  const int64_t version = std::transform_reduce(parts_.begin(), parts_.end(), int64_t{0}, std::plus<>(),
                                                [](const at::Tensor& part) { return int64_t{part._version()}; });
  if (*is_first_microbatch) version_ = version;
  TORCH_CHECK(version == version_,
              "is_first_microbatch: expected the weight of the first microbatch, got one that has changed since");
}

}  // namespace plimsoll::nn
