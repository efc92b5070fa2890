#include "plimsoll/models/t5/fixes.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace plimsoll::models {

void check(const T5Fixes& fixes) {
  int exponent = 0;
  TORCH_CHECK_VALUE(fixes.downproject_scale >= 1 && std::isfinite(fixes.downproject_scale) &&
                        std::frexp(fixes.downproject_scale, &exponent) == 0.5,
                    "t5_fixes: expected downproject_scale to be a power of two of at least 1, got ",
                    fixes.downproject_scale);
  TORCH_CHECK_VALUE(fixes.mask_scale > 0 && fixes.mask_scale <= 1, "t5_fixes: expected mask_scale in (0, 1], got ",
                    fixes.mask_scale);
  TORCH_CHECK_VALUE(fixes.gelu_guard >= 0 && std::isfinite(fixes.gelu_guard),
                    "t5_fixes: expected a finite gelu_guard >= 0, got ", fixes.gelu_guard);
}

}  // namespace plimsoll::models
