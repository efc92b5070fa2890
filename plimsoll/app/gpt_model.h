// The model of a run, and its tensors by name.
#pragma once

#include <filesystem>
#include <string>

#include "plimsoll/app/model_shape.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/nn/gpt.h"

namespace plimsoll::app {

// Weights drawn from `seed`, the same under every recipe.
nn::Gpt make_gpt(const ModelShape& shape, int64_t seed);

// Parameters and buffers (the recipe's state); they share storage with the model.
io::TensorMap tensors_of(const nn::Gpt& model);

// Copies. Throws Error unless the names are the model's and every parameter has its shape.
void load_tensors(nn::Gpt& model, const io::TensorMap& tensors);

// What a training run has made.
struct TrainedGpt {
  int64_t step = 0;
  ModelShape shape;
  std::string recipe;
  nn::Gpt model{nullptr};  // in eval()
};

// Of a run's newest good checkpoint, or of one step's directory. Throws Error.
TrainedGpt load_trained_gpt(const std::filesystem::path& path);

}  // namespace plimsoll::app
