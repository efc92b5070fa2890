// What a watch is told of an operand: memory, which the host reads when somebody asks.
#pragma once

#include "plimsoll/format/format.h"
#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::ops {

struct OperandSeen {
  format::Format format = format::Format::kFp32;
  AmaxSlot amax = {};
  ScaleRef scale = {};     // of the whole tensor
  bool by_blocks = false;  // scales of blocks instead: that of the largest follows from the amax
};

watch::Observation read_on_host(const OperandSeen& seen);

}  // namespace plimsoll::ops
