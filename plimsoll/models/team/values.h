// Values of a format that is known at run time.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {

// body(values): `values` as the type of the format.
template <class F>
void with_values(format::Format format, const void* values, F&& body) {
  switch (format) {
    case format::Format::kBf16:
      return body(static_cast<const c10::BFloat16*>(values));
    case format::Format::kFp16:
      return body(static_cast<const c10::Half*>(values));
    case format::Format::kFp32:
      return body(static_cast<const float*>(values));
    case format::Format::kE4m3:
    case format::Format::kE5m2:
    case format::Format::kE2m1:
    case format::Format::kE8m0:
      break;
  }
  runtime::unexpected("step: format of values", static_cast<int>(format));
}

}  // namespace plimsoll::models
