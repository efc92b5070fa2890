#include "plimsoll/models/weight_dtype.h"

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {

at::ScalarType computed_in(WeightDtype dtype, at::ScalarType stored) {
  switch (dtype) {
    case WeightDtype::kAsStored:
      return stored;
    case WeightDtype::kFp32:
      return at::kFloat;
    case WeightDtype::kFp16:
      return at::kHalf;
    case WeightDtype::kBf16:
    case WeightDtype::kFp8:
      return at::kBFloat16;
  }
  runtime::unexpected("load: dtype", static_cast<int>(dtype));
}

}  // namespace plimsoll::models
