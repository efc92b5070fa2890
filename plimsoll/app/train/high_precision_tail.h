// The last blocks of a model, whose products have no codes: under recipes of four bits they lose the most by them.
// Source: NVIDIA, "Pretraining large language models with NVFP4", arXiv 2509.25149. The head has none in any model here,
// and an embedding is no product.
#pragma once

#include <cstdint>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// Share of the blocks under a recipe, as the help of --high-precision-tail has it; 0 under `auto`.
double high_precision_tail(const ChosenRecipe& recipe);
// The same, or what the options ask for.
double high_precision_tail(const TrainOptions& options);

// Blocks in the tail: share * blocks, rounded up; but for a share of 1 at least one block is not among them.
int64_t blocks_in_tail(double share, int64_t blocks);

// From here on the products of the model's last blocks run in the high-precision format, whatever the recipe.
void keep_tail_in_high_precision(models::LanguageModel& model, double share);

}  // namespace plimsoll::app
