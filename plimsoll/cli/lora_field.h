// The value of --lora: NAME=VALUE,..., all of them or some.
#pragma once

#include <optional>

#include "plimsoll/cli/field.h"
#include "plimsoll/models/lora/lora.h"

namespace plimsoll::cli {

// r=16,alpha=32,targets=q_proj,v_proj,dropout=0.05. What is not named has the value of `usual`, alpha twice the rank.
// Asked for without a value: set to `usual`.
Field lora(std::optional<models::LoraOptions>& target, const models::LoraOptions& usual);

}  // namespace plimsoll::cli
