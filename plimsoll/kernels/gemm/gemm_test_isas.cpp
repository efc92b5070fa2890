#include "plimsoll/kernels/gemm/gemm_test_support.h"

namespace plimsoll::kernels::testing {

std::vector<runtime::Isa> isas() {
  std::vector<runtime::Isa> result;
  for (int level = 0; level <= static_cast<int>(runtime::detected_isa()); ++level) {
    result.push_back(static_cast<runtime::Isa>(level));
  }
  return result;
}

}  // namespace plimsoll::kernels::testing
