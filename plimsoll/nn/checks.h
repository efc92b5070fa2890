// Checks of the numbers that constructors of layers take. Errors name the layer, what it expected and what it got.
#pragma once

#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>

namespace plimsoll::nn {

inline void check_size(const char* layer, const char* name, int64_t size, int64_t lowest) {
  TORCH_CHECK_VALUE(size >= lowest, layer, ": expected ", name, " >= ", lowest, ", got ", size);
}

// A share that may be dropped, none to all. NaN is none.
inline void check_dropout(const char* layer, const char* name, double probability) {
  TORCH_CHECK_VALUE(probability >= 0 && probability <= 1, layer, ": expected ", name, " in [0, 1], got ", probability);
}

inline void check_epsilon(const char* layer, double epsilon) {
  TORCH_CHECK_VALUE(std::isfinite(epsilon) && epsilon >= 0, layer,
                    ": expected an epsilon that is finite and >= 0, got ", epsilon);
}

}  // namespace plimsoll::nn
