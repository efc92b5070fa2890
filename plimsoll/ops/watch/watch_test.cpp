// Each mode of the watch on layers that overflow.
#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <thread>

#include "plimsoll/format/fp16.h"
#include "plimsoll/kernels/testing.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/norm/norm.h"
#include "plimsoll/ops/testing.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops::watch_test {
namespace {

using testing::sample;
using testing::ScopedThreads;
using watch::Mode;

constexpr int64_t kBatch = 2, kTokens = 5, kIn = 70, kOut = 40;
constexpr int64_t kBadText = 1, kBadToken = 3, kBadColumn = 33;

at::Tensor small_values(at::IntArrayRef sizes) {
  at::manual_seed(5);
  return sample(sizes, 0.01).to(at::kHalf);
}

// An FP16 layer whose outputs are small, but for one that is 3 * 300 * 100 = 90,000 and more.
struct OverflowingLayer {
  OverflowingLayer() {
    scaling.state->name = "block.2.wo";
    x[kBadText][kBadToken].slice(0, 0, 3).fill_(300);
    weight[kBadColumn].slice(0, 0, 3).fill_(100);
    weight[kBadColumn][1].fill_(120);  // the largest term of the three
  }

  at::Tensor run() const { return linear(x, weight, {}, scaling); }

  at::Tensor x = small_values({kBatch, kTokens, kIn});
  at::Tensor weight = small_values({kOut, kIn});
  LinearScaling scaling = {.state = std::make_shared<LinearState>()};
};

watch::Incident only_incident(const watch::Session& session) {
  const std::vector<watch::Incident> incidents = session.incidents().all();
  EXPECT_EQ(incidents.size(), 1u);
  return incidents.empty() ? watch::Incident{} : incidents.front();
}

TEST(Watch, GuardWarnsBeforeAnythingIsInfinite) {
  const at::NoGradGuard no_grad;
  OverflowingLayer layer;
  layer.weight[kBadColumn].mul_(0.25);
  watch::Session session({.mode = Mode::kGuard});
  layer.run();
  ASSERT_EQ(session.warnings().size(), 1u);
  EXPECT_EQ(session.warnings().front().name, "block.2.wo/output");
  EXPECT_GT(session.warnings().front().headroom_bits, 0);
  EXPECT_EQ(session.warnings().front().non_finite, 0);
  EXPECT_TRUE(session.incidents().all().empty());
}

TEST(Watch, CountLooksAtElementsOnlyNearTheEndsOfTheFormat) {
  const at::NoGradGuard no_grad;
  const auto counts_of = [](const OverflowingLayer& layer) {
    watch::Session session({.mode = Mode::kCount});
    layer.run();
    return session.slots().records().front().counts;
  };
  OverflowingLayer layer;
  const watch::Counts near_top = counts_of(layer);
  EXPECT_EQ(near_top.elements, kBatch * kTokens * kOut);
  EXPECT_EQ(near_top.overflowed, 1);

  layer.weight.mul_(0.01);
  EXPECT_EQ(counts_of(layer).elements, 0);

  layer.x.mul_(1e-3);
  layer.weight.mul_(5e-3);
  const at::Tensor exact = at::matmul(layer.x.to(at::kDouble), layer.weight.to(at::kDouble).t()).flatten();
  const watch::Counts near_bottom = counts_of(layer);
  EXPECT_EQ(near_bottom.overflowed, 0);
  EXPECT_EQ(near_bottom.flushed, exact.abs().le(0x1p-25).sum().item<int64_t>());
  EXPECT_EQ(near_bottom.subnormal,
            near_bottom.elements - near_bottom.flushed - exact.abs().ge(0x1p-14).sum().item<int64_t>());
  EXPECT_GT(near_bottom.flushed, 0);
  EXPECT_GT(near_bottom.subnormal, 0);
}

TEST(Watch, ShadowFindsTheElementAndSaysWhatItShouldHaveBeen) {
  const at::NoGradGuard no_grad;
  const OverflowingLayer layer;
  watch::Session session({.mode = Mode::kShadow});
  const at::Tensor output = layer.run();
  layer.run();  // found once
  const watch::Incident incident = only_incident(session);
  EXPECT_EQ(incident.path, "block.2.wo");
  EXPECT_EQ(incident.op, "gemm output");
  EXPECT_EQ(incident.call, 0);
  EXPECT_EQ(incident.row, kBadText * kTokens + kBadToken);
  EXPECT_EQ(incident.token, kBadToken);
  EXPECT_EQ(incident.column, kBadColumn);
  EXPECT_EQ(incident.bad_elements, 1);
  EXPECT_TRUE(output[kBadText][kBadToken][kBadColumn].isinf().item<bool>());
  const double exact =
      at::matmul(layer.x.to(at::kDouble)[kBadText][kBadToken], layer.weight.to(at::kDouble)[kBadColumn]).item<double>();
  const double bound = kernels::gemm_error_bound(kIn, exact, 300);
  ASSERT_TRUE(incident.value && incident.replay && incident.largest_term);
  EXPECT_NEAR(*incident.value, exact, bound);
  EXPECT_EQ(incident.replay->amax, static_cast<float>(*incident.value));
  EXPECT_LT(incident.replay->headroom_bits, 0);
  EXPECT_LT(incident.replay->relative_error, testing::unit_roundoff(format::Format::kFp16));
  EXPECT_EQ(incident.largest_term->index, 1);
  EXPECT_EQ(incident.largest_term->product(), 300 * 120);
  ASSERT_EQ(incident.operands.size(), 2u);
  EXPECT_EQ(incident.operands[0].amax, 300);
  EXPECT_EQ(incident.operands[1].amax, 120);
  EXPECT_EQ(incident.operands[1].shape, (std::vector<int64_t>{kOut, kIn}));
  EXPECT_TRUE(incident.instruction.empty());
  EXPECT_FALSE(incident.backtrace.empty());
}

// Three layers: rounding of the first shows in the second, the third reads the Inf.
TEST(Watch, ShadowRunsTheWindowAroundTheFirstBadOpInFp32) {
  const at::NoGradGuard no_grad;
  at::manual_seed(6);
  const at::Tensor x = sample({kTokens, kIn}).to(at::kHalf);
  const std::array<std::string, 3> paths = {"first", "second", "third"};
  std::array<at::Tensor, 3> weights;
  for (at::Tensor& weight : weights) weight = sample({kIn, kIn}, 0.3).to(at::kHalf);
  weights[1].mul_(3e4);
  watch::Session session({.mode = Mode::kShadow});
  std::array<at::Tensor, 3> narrow, wide;
  for (size_t i = 0; i < 3; ++i) {
    LinearScaling scaling = {.state = std::make_shared<LinearState>(paths[i])};
    const at::Tensor input = i == 0 ? x : at::relu(narrow[i - 1]).t().contiguous().t().contiguous();
    narrow[i] = linear(input, weights[i], {}, scaling);
  }
  for (size_t i = 0; i < 3; ++i) {
    wide[i] = at::matmul(i == 0 ? x.to(at::kDouble) : at::relu(wide[i - 1]), weights[i].to(at::kDouble).t());
  }
  const watch::Incident incident = only_incident(session);
  EXPECT_EQ(incident.path, "second");
  std::vector<watch::WindowStep> products;
  for (const watch::WindowStep& step : incident.window) {
    if (std::find(paths.begin(), paths.end(), step.path) != paths.end()) products.push_back(step);
  }
  ASSERT_EQ(products.size(), 3u);
  EXPECT_GT(incident.window.size(), 3u) << "the operators between are steps, too";
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(products[i].path, paths[i]);
    const double amax = wide[i].abs().max().item<double>();
    EXPECT_NEAR(products[i].replay.amax, amax, kernels::gemm_error_bound(3 * kIn, amax * kIn, 1)) << paths[i];
  }
  EXPECT_EQ(products[0].amax, narrow[0].abs().max().item<float>());
  EXPECT_GT(products[0].replay.headroom_bits, 0);
  EXPECT_LT(products[1].replay.headroom_bits, 0);
  // The finite elements of the second layer carry the rounding of both.
  EXPECT_GT(products[1].replay.relative_error, products[0].replay.relative_error);
}

TEST(Watch, AWindowPassesOverWhatWasWrittenOverSince) {
  const at::NoGradGuard no_grad;
  OverflowingLayer layer;
  watch::Session session({.mode = Mode::kShadow});
  LinearScaling before = {.state = std::make_shared<LinearState>("before")};
  const at::Tensor input = at::ones({3, kIn}, at::kHalf);
  linear(input, layer.weight, {}, before);
  input.fill_(2);
  layer.run();
  const watch::Incident incident = only_incident(session);
  ASSERT_FALSE(incident.window.empty());
  EXPECT_EQ(incident.window.front().path, "block.2.wo");
}

TEST(Watch, TrapNamesTheSameElementAndTheInstruction) {
  const at::NoGradGuard no_grad;
  const OverflowingLayer layer;
  for (const runtime::Isa isa : kernels::testing::isas_present()) {
    for (const int threads : {1, 3}) {
      const runtime::ScopedIsa scope(isa);
      const ScopedThreads team(threads);
      watch::Session session({.mode = Mode::kTrap});
      layer.run();
      const watch::Incident incident = only_incident(session);
      EXPECT_EQ(incident.path, "block.2.wo");
      EXPECT_EQ(incident.row, kBadText * kTokens + kBadToken);
      EXPECT_EQ(incident.column, kBadColumn);
      EXPECT_FALSE(incident.replay.has_value());
      const bool raises = runtime::has_overflow_traps() && isa != runtime::Isa::kPortable;
      EXPECT_EQ(!incident.instruction.empty(), raises) << incident.instruction;
    }
  }
}

TEST(Watch, ResultsAreTheSameInEveryMode) {
  const at::NoGradGuard no_grad;
  const OverflowingLayer layer;
  const at::Tensor expected = layer.run();
  for (const std::string_view text : watch::kModeNames) {
    const watch::Session session({.mode = *watch::parse_mode(text)});
    EXPECT_TRUE(at::equal(layer.run(), expected)) << text;
  }
}

TEST(Watch, HarmIsFollowedThroughTheOperatorsBetween) {
  const at::NoGradGuard no_grad;
  const OverflowingLayer layer;
  const auto harm_after = [&](const std::function<void(const at::Tensor&)>& use) {
    watch::Session session({.mode = Mode::kShadow});
    use(layer.run());
    const watch::Incident incident = only_incident(session);
    EXPECT_FALSE(incident.consumers.empty());
    return incident.harm;
  };
  EXPECT_EQ(harm_after([](const at::Tensor& y) { at::tanh(y); }), watch::Harm::kAbsorbed);
  EXPECT_EQ(harm_after([](const at::Tensor& y) { at::softmax(-y, -1); }), watch::Harm::kAbsorbed);
  EXPECT_EQ(harm_after([](const at::Tensor& y) { at::add(y, 1); }), watch::Harm::kPropagating);
  EXPECT_EQ(harm_after([](const at::Tensor& y) { at::sub(y, y); }), watch::Harm::kNanProducing);
  EXPECT_EQ(harm_after([](const at::Tensor& y) { norm({.x = y, .weight = at::ones({kOut})}, {}); }),
            watch::Harm::kNanProducing);
}

// As sharded parameters are while nobody reads them.
TEST(Watch, TensorsWithoutMemoryAreNotRead) {
  const at::NoGradGuard no_grad;
  watch::Session session({.mode = Mode::kShadow});
  OverflowingLayer().run();
  const at::Tensor freed = at::ones({1 << 20});
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
  freed.storage().unsafeGetStorageImpl()->reset();
  freed.view({2, -1}).detach();
  only_incident(session);
}

// As torch does for the threads of Gloo's collectives.
TEST(Watch, OperatorsOfThreadsWithoutASessionAreLeftAlone) {
  const at::NoGradGuard no_grad;
  for (const Mode mode : {Mode::kTrap, Mode::kShadow}) {
    watch::Session session({.mode = mode});
    OverflowingLayer().run();  // the watch over operators begins with a product
    const at::ThreadLocalState taken_along;
    float sum = 0;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(taken_along);
      sum = at::add(at::ones({2}), 1).sum().item<float>();
    }).join();
    EXPECT_EQ(sum, 4);
    only_incident(session);
  }
}

TEST(Watch, OperatorsThatOverflowAreNamedByTheProductBeforeThem) {
  const at::NoGradGuard no_grad;
  OverflowingLayer layer;
  layer.weight.mul_(0.4);
  watch::Session session({.mode = Mode::kShadow});
  const at::Tensor y = layer.run(), residual = at::full_like(y, 32768);
  at::add(y, residual);
  const watch::Incident incident = only_incident(session);
  EXPECT_EQ(incident.path, "aten::add after block.2.wo");
  EXPECT_EQ(incident.column, kBadColumn);
  ASSERT_EQ(incident.operands.size(), 2u);
  const double addend = y[kBadText][kBadToken][kBadColumn].item<double>();
  EXPECT_EQ(incident.operands[0].at_place, addend);
  EXPECT_EQ(incident.operands[1].at_place, 32768);
  EXPECT_EQ(incident.value, addend + 32768);
  ASSERT_EQ(incident.before.size(), 1u);
  EXPECT_EQ(incident.before.front().path, "block.2.wo");
}

TEST(Watch, TheSumOfANormIsAnOperatorOfOurs) {
  const at::NoGradGuard no_grad;
  for (const Mode mode : {Mode::kTrap, Mode::kShadow}) {
    const at::Tensor x = at::full({3, kOut}, 2, at::kHalf), residual = x.clone(), weight = at::ones({kOut});
    x[1][7] = residual[1][7] = 40000;
    watch::Session session({.mode = mode});
    norm({.x = x, .residual = residual, .weight = weight}, {});
    const watch::Incident incident = only_incident(session);
    EXPECT_EQ(incident.op, "plimsoll::norm_forward");
    EXPECT_EQ(incident.row, 1);
    EXPECT_EQ(incident.column, 7);
    EXPECT_EQ(incident.harm, watch::Harm::kNanProducing);
    EXPECT_EQ(incident.operands[0].at_place, 40000);
    const bool raises = runtime::has_overflow_traps() && runtime::isa() != runtime::Isa::kPortable;
    EXPECT_EQ(!incident.instruction.empty(), raises && mode == Mode::kTrap);
  }
}

TEST(Watch, MasksAreNoIncidents) {
  const at::NoGradGuard no_grad;
  watch::Session session({.mode = Mode::kShadow});
  norm({.x = at::ones({2, 4}), .weight = at::ones({4})}, {});  // from here on somebody looks
  const at::Tensor scores = at::ones({2, 4}, at::kHalf);
  const at::Tensor masked =
      scores.masked_fill(at::ones({2, 4}, at::kBool).triu(1), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(at::softmax(masked, -1).isfinite().all().item<bool>());
  at::empty_like(scores);
  EXPECT_TRUE(session.incidents().all().empty());
}

}  // namespace
}  // namespace plimsoll::ops::watch_test
