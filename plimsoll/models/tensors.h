// The tensors of a model by name, and those of a file that are to become a model's.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/io/safetensors.h"

namespace plimsoll::models {

// Parameters by name: what a file must hold before a model is made for it.
using ParameterShapes = std::map<std::string, std::vector<int64_t>>;

// Parameters and buffers (the recipe's state); they share storage with the model.
io::TensorMap tensors_of(const torch::nn::Module& model);
// The same without frozen parameters: what training changes.
io::TensorMap trained_tensors_of(const torch::nn::Module& model);

// A tensor of a file: the dtype in the words of safetensors, and the shape.
struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
};
using StoredTensors = std::map<std::string, StoredTensor>;
StoredTensors stored(const io::TensorMap& tensors);

// Throws io::Error unless it is there, in this shape, in F32, BF16 or F16.
void check_stored(const StoredTensors& tensors, const std::string& name, const std::vector<int64_t>& expected);

// Copies. Throws io::Error unless the names are the model's; frozen parameters may be missing, and stay as they are. The
// parameters have been checked.
void load_tensors(torch::nn::Module& model, const io::TensorMap& tensors);

}  // namespace plimsoll::models
