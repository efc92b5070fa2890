#include "plimsoll/app/checkpoint/check_codes.h"

#include <algorithm>
#include <array>

namespace plimsoll::app {

bool is_weight_scale(std::string_view name) {
  constexpr std::array<std::string_view, 3> kScales = {".weight_scale", ".weight_scale_inv", ".weight_global_scale"};
  return std::ranges::any_of(kScales, [&](std::string_view scale) { return name.ends_with(scale); });
}

}  // namespace plimsoll::app
