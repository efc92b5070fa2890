#include "plimsoll/gauge/search.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace plimsoll::gauge {

void raise_to(models::Amaxes& amaxes, const std::vector<watch::Record>& records) {
  for (const watch::Record& record : records) {
    TORCH_CHECK(record.non_finite == 0, "gauge: expected finite values in FP32, got Inf or NaN in '", record.name, "'");
    float& amax = amaxes[record.name];
    amax = std::max(amax, record.amax);
  }
}

models::Exponents search(const models::Freedoms& freedoms, const WeightRanges& weights, const models::Amaxes& values,
                         int headroom_bits) {
  return RangeCosts(freedoms, weights, values, headroom_bits).best();
}

}  // namespace plimsoll::gauge
