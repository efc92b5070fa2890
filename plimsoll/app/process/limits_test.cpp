#include "plimsoll/app/process/limits.h"

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
  EXPECT_EQ(limits.tile_gflops.has_value(), runtime::isa() >= runtime::Isa::kAmx);
}

TEST(Limits, OfAllLevelsAreInOrder) {
  const AllLimits limits = measure_all_limits();
  for (const Rate& rate :
       {limits.l2.read, limits.l2.copy, limits.l2.in_place, limits.l3.read, limits.l3.copy, limits.l3.in_place,
        limits.memory.read, limits.memory.copy, limits.memory.in_place, limits.first_touch, limits.first_touch_huge}) {
    EXPECT_GT(rate.one_thread, 0.1);
    EXPECT_LT(rate.all_threads, 1e5);
  }
  EXPECT_GT(limits.fp32_gflops.all_threads, 0.5 * limits.fp32_gflops.one_thread);
  EXPECT_GT(limits.l2.read.one_thread, limits.memory.read.one_thread);
  // A pass over fresh pages is the pass and the page faults.
  EXPECT_LT(limits.first_touch.one_thread, limits.l2.in_place.one_thread);
  EXPECT_GT(limits.fork_join_us, 0);
  EXPECT_LT(limits.fork_join_us, 1e5);
  EXPECT_EQ(limits.bf16_gflops.has_value(), runtime::isa() >= runtime::Isa::kAvx512Bf16);
  EXPECT_EQ(limits.tile_gflops.has_value(), runtime::isa() >= runtime::Isa::kAmx);
}

TEST(Info, KernelsStayAtOrBelowTheLevelInForce) {
  const runtime::ScopedIsa lowered(runtime::Isa::kPortable);
  for (const KernelIsa& kernel : machine_info().kernels)
    EXPECT_EQ(kernel.isa, runtime::Isa::kPortable) << kernel.kernel;
}

}  // namespace
}  // namespace plimsoll::app
