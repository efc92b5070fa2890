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
    case WeightDtype::kNvfp4:
    case WeightDtype::kMxfp4:
      return at::kBFloat16;
  }
  runtime::unexpected("load: dtype", static_cast<int>(dtype));
}

std::optional<ops::CodeKind> code_kind(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kAsStored:
    case WeightDtype::kFp32:
    case WeightDtype::kBf16:
    case WeightDtype::kFp16:
      return std::nullopt;
    case WeightDtype::kFp8:
      return ops::CodeKind::kE4m3Rows;
    case WeightDtype::kNvfp4:
      return ops::CodeKind::kNvfp4;
    case WeightDtype::kMxfp4:
      return ops::CodeKind::kMxfp4;
  }
  runtime::unexpected("load: dtype", static_cast<int>(dtype));
}

}  // namespace plimsoll::models
