// Loss scale of a run that begins with a model that `plimsoll gauge --train` has written.
#pragma once

#include <filesystem>
#include <optional>

#include "plimsoll/app/train/loss_scale.h"

namespace plimsoll::app {

// Power of two that the directory's certificate leaves to steps whose loss is the mean over so many targets; nothing where
// it has no certificate of training. Gradients shrink as a step has more targets, and the scale makes up for that; of
// steps with few, whose gradients would lose their headroom, it is below 1.
std::optional<LossScale> gauged_loss_scale(const std::filesystem::path& directory, double targets_a_step);

}  // namespace plimsoll::app
