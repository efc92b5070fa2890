#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels::testing {

std::vector<runtime::Isa> attention_isas() {
  std::vector<runtime::Isa> isas = isas_present();
  for (runtime::Isa isa : {runtime::Isa::kAvx512Bf16, runtime::Isa::kAmx}) {
    if (runtime::detected_isa() >= isa) isas.push_back(isa);
  }
  return isas;
}

}  // namespace plimsoll::kernels::testing
