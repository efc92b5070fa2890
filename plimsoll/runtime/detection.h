// Capabilities of the processor that the operating system allows. Private to this folder, but that tests/amx has
// another detect().
#pragma once

#include <string_view>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::runtime {

struct Detection {
  Isa isa = Isa::kPortable;
  std::string_view amx_refusal = {};  // see amx_refusal()
};

Detection detect();

}  // namespace plimsoll::runtime
