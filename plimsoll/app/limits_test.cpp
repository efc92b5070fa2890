#include "plimsoll/app/limits.h"

#include <gtest/gtest.h>

#include "plimsoll/app/info.h"

namespace plimsoll::app {
namespace {

TEST(Limits, ArePlausibleForAnyMachine) {
  const MachineLimits limits = measure_limits();
  EXPECT_GT(limits.fp32_gflops, 1);  // a scalar multiply-add each nanosecond
  EXPECT_LT(limits.fp32_gflops, 1e5);
  EXPECT_GT(limits.read_gbytes_per_s, 0.5);
  EXPECT_LT(limits.read_gbytes_per_s, 1e4);
  EXPECT_EQ(limits.bf16_gflops.has_value(), runtime::isa() >= runtime::Isa::kAvx512Bf16);
}

TEST(Info, KernelsStayAtOrBelowTheLevelInForce) {
  const runtime::ScopedIsa lowered(runtime::Isa::kPortable);
  for (const KernelIsa& kernel : machine_info().kernels)
    EXPECT_EQ(kernel.isa, runtime::Isa::kPortable) << kernel.kernel;
}

}  // namespace
}  // namespace plimsoll::app
