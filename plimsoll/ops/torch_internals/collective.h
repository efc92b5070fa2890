// Results of torch.distributed's collectives when they are called as operators. What is waited for is an object of a class
// that torch does not document (c10d::Work). Declared alike in torch 2.11 and 2.13.
#pragma once

#include <ATen/core/ivalue.h>

namespace plimsoll::ops {

// Waits if this result of an operator is a collective that may still be running.
void wait_for_collective(const c10::IValue& result);

}  // namespace plimsoll::ops
