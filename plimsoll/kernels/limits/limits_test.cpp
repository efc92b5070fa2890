#include "plimsoll/kernels/limits/limits.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

using runtime::Isa;

// The best of several windows: what a neighbour takes from one of them is no property of the registers.
double best_fp32_rate() {
  double best = 0;
  for (int window = 0; window < 5; ++window) best = std::max(best, measure_fp32_limit(0.01).rate());
  return best;
}

TEST(Limits, WiderRegistersDoMore) {
  double before = 0;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > runtime::detected_isa()) break;
    runtime::ScopedIsa scope(isa);
    const double rate = best_fp32_rate();
    EXPECT_GT(rate, 1e8);
    EXPECT_GT(rate, 0.8 * before);  // a processor may run wider registers in two halves
    before = rate;
  }
}

TEST(Limits, PairsAreMeasuredWhereTheyExist) {
  const Measured limit = measure_bf16_limit(0.01);
  EXPECT_EQ(limit.operations > 0, runtime::isa() >= Isa::kAvx512Bf16);
}

TEST(Limits, TilesAreMeasuredWhereTheyExist) {
  const Measured limit = measure_tile_limit(0.01);
  EXPECT_EQ(limit.operations > 0, runtime::isa() >= Isa::kAmx);
}

TEST(Limits, MeasurementsAddUp) {
  Measured sum = {6.0, 2.0};
  sum += {4.0, 3.0};
  EXPECT_EQ(sum.rate(), 2.0);
}

}  // namespace
}  // namespace plimsoll::kernels
