#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::ops {

OperandSlot& LinearState::slot(recipe::Role role) {
  switch (role) {
    case recipe::Role::kInput:
      return input;
    case recipe::Role::kWeight:
      return weight;
    case recipe::Role::kGradOutput:
      break;
  }
  return grad_output;
}

}  // namespace plimsoll::ops
