// The model of a run, and its tensors by name.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/app/model_shape.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::app {

// Weights drawn from `seed`, the same under every recipe.
models::Gpt make_gpt(const ModelShape& shape, int64_t seed);

// Parameters and buffers (the recipe's state); they share storage with the model.
io::TensorMap tensors_of(const models::Gpt& model);

// Tensors of a file: the dtype in the words of safetensors, and the shape.
struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
};
using StoredTensors = std::map<std::string, StoredTensor>;
StoredTensors stored(const io::TensorMap& tensors);

// Throws Error unless each parameter of a model of this shape is there, in its shape, in F32, BF16 or F16. Called
// before the model is made, whose size a file may have made up.
void check_parameters(const ModelShape& shape, const StoredTensors& tensors);

// Copies. Throws Error unless the names are the model's. The parameters have been checked.
void load_tensors(models::Gpt& model, const io::TensorMap& tensors);

// What a training run has made.
struct TrainedGpt {
  int64_t step = 0;
  ModelShape shape;
  std::string recipe;
  models::Gpt model{nullptr};  // in eval()
};

// The model of a run's newest good checkpoint, or of one step's directory. Throws Error.
TrainedGpt load_trained_gpt(const std::filesystem::path& path);

}  // namespace plimsoll::app
