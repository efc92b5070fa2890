#include "plimsoll/accelerate/accelerate.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll {
namespace {

int64_t calls(std::string_view op, std::string_view outcome) {
  for (const OperatorCalls& each : acceleration_report()) {
    if (each.op != op) continue;
    for (const OperatorCalls::Outcome& of : each.outcomes) {
      if (of.name == outcome) return of.calls;
    }
  }
  return 0;
}

TEST(Accelerate, HoldsWhileTheOutermostObjectLives) {
  EXPECT_FALSE(is_accelerated());
  {
    const Accelerated outer;
    { const Accelerated inner; }
    EXPECT_TRUE(is_accelerated());
  }
  EXPECT_FALSE(is_accelerated());
}

TEST(Accelerate, CountsWhatIsReplacedAndWhatFallsThrough) {
  if (runtime::detected_isa() < runtime::Isa::kAvx2) GTEST_SKIP() << "no rule for this processor";
  const runtime::ScopedIsa avx2(runtime::Isa::kAvx2);
  const at::Tensor a = at::randn({64, 64}, at::kHalf), b = at::randn({64, 64}, at::kHalf);
  reset_acceleration_report();
  accelerate();
  accelerate();
  at::mm(a, b);
  at::mm(a.to(at::kDouble), b.to(at::kDouble));
  stop_acceleration();
  at::mm(a, b);
  EXPECT_EQ(calls("mm", "replaced"), 1);
  EXPECT_EQ(calls("mm", "dtype"), 1);
}

TEST(Accelerate, ABiasAsOfOneRowForAll) {
  if (runtime::detected_isa() < runtime::Isa::kAvx2) GTEST_SKIP() << "no rule for this processor";
  const runtime::ScopedIsa avx2(runtime::Isa::kAvx2);
  const at::Tensor a = at::randn({64, 64}, at::kHalf), b = at::randn({64, 64}, at::kHalf),
                   bias = at::randn({64}, at::kHalf);
  reset_acceleration_report();
  const Accelerated on;
  const at::Tensor rows = at::addmm(bias, a, b);
  EXPECT_TRUE(at::addmm(bias.expand({64, 64}), a, b).equal(rows));
  EXPECT_EQ(calls("addmm", "replaced"), 2);
  at::addmm(bias.expand({64, 64}).contiguous(), a, b);
  EXPECT_EQ(calls("addmm", "shape"), 1);
}

}  // namespace
}  // namespace plimsoll
