// Names of what codes need.
#pragma once

#include <string_view>

namespace plimsoll::app {

// Whether the tensor has the name of scales or of a global scale of a matrix.
bool is_weight_scale(std::string_view name);

}  // namespace plimsoll::app
