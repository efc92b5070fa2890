#include "plimsoll/shard/plan/step_plan.h"

#include <gtest/gtest.h>

namespace plimsoll::shard {
namespace {

// Relative error of a plan's times: each sums at most 16 terms of two operations, in double.
constexpr double kRounding = 32 * 0x1p-53;

// A root of 10 parameters and two units of 100 and 300; forward takes 3 s, 90 % of it in the units.
PlannedStep three_units(Sharing sharing, int64_t world) {
  return {.units = {{10, 20, 0.1}, {100, 200, 0.3}, {300, 600, 0.6}},
          .sharing = sharing,
          .world = world,
          .compute_seconds = 9,
          .activation_bytes = 5000,
          .bucket_bytes = 1000,
          .network = {.bytes_per_second = 1e9, .seconds_per_message = 0}};
}

// At the end of the backward pass, where there are no activations.
TEST(StepPlan, MemoryIsThatOfTheTable) {
  const auto memory = [](Sharing sharing, int64_t world) {
    PlannedStep step = three_units(sharing, world);
    step.activation_bytes = 0;
    return plan_step(step).memory;
  };
  EXPECT_EQ(memory(Sharing::kNone, 1).total(), 16 * 410);
  EXPECT_EQ(memory(Sharing::kFsdp, 1).total(), 16 * 410);

  const PlannedMemory ddp = memory(Sharing::kDdp, 4);
  EXPECT_EQ(ddp.parameters + ddp.gradients + ddp.states, 16 * 410);
  EXPECT_EQ(ddp.travelling, 4 * 410);  // less than three buckets

  const PlannedMemory zero1 = memory(Sharing::kZero1, 4);
  EXPECT_EQ(zero1.parameters + zero1.gradients + zero1.states, 8 * 410 + 2 * 410);
  const PlannedMemory zero2 = memory(Sharing::kZero2, 4);
  EXPECT_EQ(zero2.parameters + zero2.gradients + zero2.states, 4 * 410 + 410 + 2 * 410);

  // While the first unit computes and the second one's gradients are sent and received.
  const PlannedMemory fsdp = memory(Sharing::kFsdp, 4);
  EXPECT_EQ(fsdp.parameters + fsdp.states, 3 * 410);
  EXPECT_EQ(fsdp.gradients, 100 + 300);
  EXPECT_EQ(fsdp.travelling, 20 + 40 + 200 + 400 + 2 * 1200);
}

TEST(StepPlan, ActivationsGoWhileGradientsCome) {
  const PlannedMemory alone = plan_step(three_units(Sharing::kNone, 1)).memory;
  EXPECT_EQ(alone.activations, 5000);
  EXPECT_EQ(alone.gradients, 4 * 300);
  EXPECT_EQ(alone.total(), 12 * 410 + 5000 + 4 * 300);

  PlannedStep step = three_units(Sharing::kFsdp, 4);
  step.units.push_back({100, 500, 0});
  const auto before_backward = [&] { return plan_step(step).memory.travelling; };
  EXPECT_EQ(before_backward(), 20 + 40 + (500 + 600) + 400);
  step.reshard_after_forward = false;
  EXPECT_EQ(before_backward(), 20 + 40 + (500 + 600 + 200) + 400);
}

TEST(StepPlan, CopiesOfWeightsAreThereUnlessWeightsAreGathered) {
  for (const Sharing sharing : {Sharing::kNone, Sharing::kDdp, Sharing::kFsdp}) {
    PlannedStep step = three_units(sharing, sharing == Sharing::kNone ? 1 : 2);
    const double without = plan_step(step).memory.total();
    for (PlannedUnit& unit : step.units) unit.kept_bytes = 7;
    EXPECT_EQ(plan_step(step).memory.total() - without, sharing == Sharing::kFsdp ? 0 : 3 * 7);
  }
}

TEST(StepPlan, AModelIsThereAsAWholeBeforeItIsCutIntoParts) {
  PlannedStep step = three_units(Sharing::kFsdp, 1000);
  step.units.assign(101, {10, 40, 0.01});
  step.activation_bytes = 0;
  EXPECT_EQ(plan_step(step).memory.total(), 4 * 1010);
}

TEST(StepPlan, BytesAreThoseOfRings) {
  const auto sent = [](Sharing sharing, int64_t world) { return plan_step(three_units(sharing, world)).sent; };
  EXPECT_EQ(sent(Sharing::kNone, 1).total(), 0);
  EXPECT_EQ(sent(Sharing::kFsdp, 1).total(), 0);
  EXPECT_EQ(sent(Sharing::kDdp, 4).gradients, 2 * 0.75 * 1640);
  EXPECT_EQ(sent(Sharing::kDdp, 4).parameters, 0);
  EXPECT_EQ(sent(Sharing::kZero1, 4).gradients, 2 * 0.75 * 1640);
  EXPECT_EQ(sent(Sharing::kZero1, 4).parameters, 0.75 * 1640);
  EXPECT_EQ(sent(Sharing::kZero2, 4).gradients, 0.75 * 1640);
  EXPECT_EQ(sent(Sharing::kFsdp, 4).gradients, 0.75 * 1640);
  EXPECT_EQ(sent(Sharing::kFsdp, 4).parameters, 0.75 * (20 + 2 * 800));
  PlannedStep kept = three_units(Sharing::kFsdp, 4);
  kept.reshard_after_forward = false;
  EXPECT_EQ(plan_step(kept).sent.parameters, 0.75 * 820);
}

TEST(StepPlan, AFastNetworkHidesBehindTheComputation) {
  for (Sharing sharing : {Sharing::kNone, Sharing::kDdp, Sharing::kZero1, Sharing::kZero2, Sharing::kFsdp}) {
    const StepPlan plan = plan_step(three_units(sharing, 8));
    EXPECT_NEAR(plan.step_seconds, 9, plan.network_seconds + kRounding * 9);
  }
}

TEST(StepPlan, ASlowNetworkIsAllThatCounts) {
  for (Sharing sharing : {Sharing::kDdp, Sharing::kZero1, Sharing::kZero2, Sharing::kFsdp}) {
    PlannedStep step = three_units(sharing, 8);
    step.network.bytes_per_second = 0.1;
    const StepPlan plan = plan_step(step);
    EXPECT_NEAR(plan.network_seconds, plan.sent.total() / 0.1, kRounding * plan.network_seconds);
    EXPECT_GE(plan.step_seconds, plan.network_seconds);
    EXPECT_LE(plan.step_seconds, plan.network_seconds + 9);
  }
}

// Two ranks, a byte a second: a unit's gradients and the next one's parameters travel while a unit computes.
TEST(StepPlan, WhatIsLateIsWaitedFor) {
  PlannedStep step = {.units = {{0, 0, 0}, {1, 2, 0.5}, {1, 2, 0.5}},
                      .world = 2,
                      .compute_seconds = 12,
                      .network = {.bytes_per_second = 1, .seconds_per_message = 0}};
  // Gathers take 1 s, reductions 2 s; forward 2 s a unit, backward 4. Only the first gather, the one after forward and
  // the last reduction are waited for.
  EXPECT_DOUBLE_EQ(plan_step(step).step_seconds, 12 + 1 + 1 + 2);
  step.network.seconds_per_message = 3;  // gathers 4 s, reductions 5 s
  // forward: 4, then 2 of the first unit, the second at 8, done at 10; its gather at 14; backward until 18; the first
  // one's gather, asked for at 14, is there at 18, and its work done at 22; gradients at 23 and 28.
  EXPECT_DOUBLE_EQ(plan_step(step).step_seconds, 28);
}

// Bytes through memory, at one a second.
TEST(StepPlan, UpdatesAndGradientsOnTheirWayTakeTime) {
  const auto seconds = [](Sharing sharing, int64_t world) {
    PlannedStep step = three_units(sharing, world);
    step.memory_bytes_per_second = 1;
    const StepPlan plan = plan_step(step);
    EXPECT_NEAR(plan.step_seconds, 9 + plan.memory_seconds, plan.network_seconds + kRounding * plan.step_seconds);
    return plan.memory_seconds;
  };
  const double update = 32 * 410;
  EXPECT_EQ(update_bytes(three_units(Sharing::kNone, 1).units), update);
  EXPECT_EQ(seconds(Sharing::kNone, 1), update);
  EXPECT_EQ(seconds(Sharing::kDdp, 1), update);
  EXPECT_EQ(seconds(Sharing::kFsdp, 1), update + 8 * 410);
  // Divided once by two, and by four in two steps.
  EXPECT_EQ(seconds(Sharing::kDdp, 2), update + 28 * 410);
  EXPECT_EQ(seconds(Sharing::kDdp, 4), update + 36 * 410);
  EXPECT_EQ(seconds(Sharing::kZero1, 4), update / 4 + 36 * 410);
  EXPECT_EQ(seconds(Sharing::kZero2, 4), update / 4 + (4 + 8 + 8) * 410 + (8 + 3 * 12 + 8 + 8) * 410 / 4);
  EXPECT_EQ(seconds(Sharing::kFsdp, 4), update / 4 + (8 + 8 + 4) * 410 + (4 + 8) * 410 / 4);
}

TEST(StepPlan, ANetworkThatTakesTheCoresHidesNothing) {
  for (const Sharing sharing : {Sharing::kDdp, Sharing::kZero2, Sharing::kFsdp}) {
    PlannedStep step = three_units(sharing, 4);
    step.network = {.bytes_per_second = 500, .seconds_per_message = 0.01, .is_beside_cores = false};
    const StepPlan plan = plan_step(step);
    EXPECT_DOUBLE_EQ(plan.step_seconds, 9 + plan.network_seconds);
    step.network.is_beside_cores = true;
    EXPECT_LT(plan_step(step).step_seconds, plan.step_seconds);
  }
}

TEST(StepPlan, LatencyGrowsWithTheNumberOfRanks) {
  PlannedStep step = three_units(Sharing::kDdp, 100000);
  step.network.seconds_per_message = 1e-6;
  const StepPlan plan = plan_step(step);
  const double expected = 2 * 2 * 99999 * 1e-6 + plan.sent.total() / 1e9;  // two buckets
  EXPECT_NEAR(plan.network_seconds, expected, kRounding * expected);
}

}  // namespace
}  // namespace plimsoll::shard
