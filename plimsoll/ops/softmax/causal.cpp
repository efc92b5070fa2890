#include "plimsoll/ops/softmax/causal.h"

#include <c10/util/Exception.h>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {

Causal parse_causal(std::string_view text, const char* op) {
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
    if (name(causal) == text) return causal;
  }
  TORCH_CHECK(false, op, ": expected mask_type no_mask, causal or causal_bottom_right, got '", text, "'");
}

std::string_view name(Causal causal) {
  switch (causal) {
    case Causal::kNone:
      return "no_mask";
    case Causal::kTopLeft:
      return "causal";
    case Causal::kBottomRight:
      return "causal_bottom_right";
  }
  runtime::unexpected("causal", static_cast<int>(causal));
}

}  // namespace plimsoll::ops
