// Seeds of what an op draws for itself, so that backward can draw it again.
#pragma once

#include <cstdint>

namespace plimsoll::ops {

// From torch's CPU generator.
int64_t draw_seed();

}  // namespace plimsoll::ops
