// Causal rules by the names of Transformer Engine's attn_mask_type.
#pragma once

#include <string_view>

#include "plimsoll/kernels/causal.h"

namespace plimsoll::ops {

using kernels::Causal;

// "no_mask", "causal" (kTopLeft), "causal_bottom_right"; an error that lists them otherwise.
Causal parse_causal(std::string_view name, const char* op);
std::string_view name(Causal causal);

}  // namespace plimsoll::ops
