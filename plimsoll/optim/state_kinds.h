// Kinds of states that AdamW keeps of a parameter between steps, and the names under which users choose them.
#pragma once

#include <array>
#include <cstdint>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::optim {

using kernels::StateKind;

// The weight of a BF16 or FP16 parameter between steps. An FP32 one is its own master.
enum class MasterKind : uint8_t {
  kFp32,   // an FP32 copy, whose nearest the parameter is
  kSplit,  // the parameter, BF16, and an int8 correction: about 16 bits of significand
  kNone,   // the parameter, BF16, alone: an update is rounded stochastically
};

inline constexpr std::array<recipe::Named<StateKind>, 3> kOptimizerStates = {
    {{"fp32", StateKind::kFp32}, {"bf16", StateKind::kBf16}, {"8bit", StateKind::k8Bit}}};
inline constexpr std::array<recipe::Named<MasterKind>, 3> kMasters = {
    {{"fp32", MasterKind::kFp32}, {"split", MasterKind::kSplit}, {"none", MasterKind::kNone}}};

}  // namespace plimsoll::optim
