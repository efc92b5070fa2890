// A watch's account of an operand or a result: memory, which the host reads when somebody asks the watch.
#pragma once

#include <string>

#include "plimsoll/format/format.h"
#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {

struct OperandSeen {
  format::Format format = format::Format::kFp32;
  AmaxSlot amax = {};
  ScaleRef scale = {};     // of the whole tensor
  bool by_blocks = false;  // scales of blocks instead: that of the largest follows from the amax
};

watch::Observation read_on_host(const OperandSeen& seen);

// Reports under this name to the session, which reads it, together with all others that wait, when somebody asks.
void report_unread(watch::Session& session, std::string name, const OperandSeen& seen);

}  // namespace plimsoll::ops
