// Checks of a model's config, whose errors name the member at fault.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <initializer_list>

namespace plimsoll::models {

// Beyond it no machine holds the model, and sizes no longer multiply within 64 bits.
inline constexpr int64_t kLargestSize = 1 << 24;

struct ConfigSize {
  const char* name;
  int64_t value;
  int64_t from = 1;
};

// model: opens errors. Throws c10::ValueError.
inline void check_sizes(const char* model, std::initializer_list<ConfigSize> sizes) {
  for (const ConfigSize& size : sizes) {
    TORCH_CHECK_VALUE(size.value >= size.from && size.value <= kLargestSize, model, ": expected ", size.name, " of ",
                      size.from, " to ", kLargestSize, ", got ", size.value);
  }
}

inline void check_dropouts(const char* model, const char* name, std::initializer_list<double> dropouts) {
  for (const double dropout : dropouts) {
    TORCH_CHECK_VALUE(dropout >= 0 && dropout < 1, model, ": expected ", name, " in [0, 1), got ", dropout);
  }
}

inline void check_norm_epsilon(const char* model, const char* name, double epsilon) {
  TORCH_CHECK_VALUE(epsilon >= 0 && epsilon < 1e30, model, ": expected a finite ", name, " >= 0, got ", epsilon);
}

}  // namespace plimsoll::models
