// A module that is one parameter: a norm's weight, the embedding, a table of biases.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

namespace plimsoll::models {

// Uninitialised until it is loaded, or T5's reset_parameters() draws it: a checkpoint's tensors take its place without
// its memory ever being touched.
class T5WeightImpl : public torch::nn::Cloneable<T5WeightImpl> {
 public:
  explicit T5WeightImpl(std::vector<int64_t> shape);
  void reset() override;

  std::vector<int64_t> sizes;
  std::string path;  // in the model, for reports
  at::Tensor weight;
};
TORCH_MODULE(T5Weight);

}  // namespace plimsoll::models
