// Shapes and dtypes of the schemas of library.cpp, without data.
#pragma once

#include <torch/library.h>

namespace plimsoll::ops {

void register_meta(torch::Library& library);

}  // namespace plimsoll::ops
