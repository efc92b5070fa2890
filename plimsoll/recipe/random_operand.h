// Operands that depend on random numbers.
#pragma once

#include "plimsoll/recipe/operand.h"

namespace plimsoll::recipe {

// Whether signs of a rotation, or stochastic rounding, are drawn for the operand.
constexpr bool is_random(const OperandRecipe& operand) { return operand.rotation > 0 || operand.stochastic; }

}  // namespace plimsoll::recipe
