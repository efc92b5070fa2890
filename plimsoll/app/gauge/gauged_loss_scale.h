// Loss scale of a run that begins with a model that `plimsoll gauge --train` has written.
#pragma once

#include <filesystem>
#include <optional>

#include "plimsoll/app/train/loss_scale.h"
#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// Power of two that the directory's certificate leaves to steps whose loss is the mean over so many targets, or the recipe's
// loss scale where all that gauge tried overflow; nothing where it has no certificate of training. Throws Error for a file that
// is no certificate. Gradients shrink as a step has more targets, and the scale makes up for that; of
// steps with few, whose gradients would lose their headroom, it is below 1.
std::optional<LossScale> gauged_loss_scale(const std::filesystem::path& directory, double targets_a_step);

// Throws Error where the directory's certificate is of other weights than the model's: their largest numbers are the same but
// for what BF16 rounds.
void expect_certified_weights(const std::filesystem::path& directory, const models::LanguageModel& model);

}  // namespace plimsoll::app
