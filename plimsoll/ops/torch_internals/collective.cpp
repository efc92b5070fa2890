#include "plimsoll/ops/torch_internals/collective.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace plimsoll::ops {

void wait_for_collective(const c10::IValue& result) {
  if (result.isCustomClass()) result.toCustomClass<c10d::Work>()->wait();
}

}  // namespace plimsoll::ops
