#include "plimsoll/amp/autocast.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/linear/linear.h"

namespace plimsoll::amp {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr at::ScalarType kNarrowDtypes[] = {at::kHalf, at::kBFloat16};

bool autocasts() { return at::autocast::is_autocast_enabled(at::kCPU); }
at::ScalarType autocast_dtype() { return at::autocast::get_autocast_dtype(at::kCPU); }

void expect_untouched() {
  EXPECT_FALSE(autocasts());
  EXPECT_EQ(autocast_dtype(), at::kBFloat16);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_EQ(at::softmax(at::ones({2}, at::kHalf), 0).scalar_type(), at::kHalf);
}

TEST(Autocast, ComputesEachOperatorInItsPrecision) {
  for (const at::ScalarType dtype : kNarrowDtypes) {
    const at::Tensor x = at::rand({4, 4}) + 0.5, narrow = x.to(dtype);
    const Autocast scope(at::kCPU, dtype);
    EXPECT_EQ(at::mm(x, x).scalar_type(), dtype);
    EXPECT_EQ(at::mv(x, narrow[0]).scalar_type(), dtype);
    EXPECT_EQ(at::einsum("ij,jk->ik", {x, narrow}).scalar_type(), dtype);
    for (const at::Tensor& wide : {at::softmax(narrow, 1), at::exp(narrow), at::sum(narrow), at::norm(narrow),
                                   at::layer_norm(narrow, {4}), at::log(narrow), at::pow(narrow, 2)}) {
      EXPECT_EQ(wide.scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::dot(x[0], narrow[0]).scalar_type(), at::kFloat);
    EXPECT_EQ(at::dot(narrow[0], narrow[1]).scalar_type(), dtype);
    EXPECT_EQ(at::softmax(narrow, 1, dtype).scalar_type(), dtype) << "the caller's dtype stays";
    EXPECT_EQ(at::sum(at::ones({3}, at::kLong)).scalar_type(), at::kLong);
    EXPECT_EQ(at::exp(x.to(at::kDouble)).scalar_type(), at::kDouble);
  }
  expect_untouched();
}

TEST(Autocast, SumsAndExponentialsDoNotOverflowFp16) {
  const at::Tensor large = at::full({100}, 1000, at::kHalf);
  EXPECT_TRUE(std::isinf(at::sum(large).item<float>()));
  const Autocast scope(at::kCPU, at::kHalf);
  EXPECT_EQ(at::sum(large).item<float>(), 100'000);
  EXPECT_FLOAT_EQ(at::exp(at::full({}, 20, at::kHalf)).item<float>(), std::exp(20.0f));
}

TEST(Autocast, NestsAndIsOffWhereItIsSwitchedOff) {
  const at::Tensor weight = at::rand({3, 3}).requires_grad_(true), x = at::rand({2, 3});
  {
    const Autocast outer(at::kCPU, at::kHalf);
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kHalf);
    {
      const Autocast inner(at::kCPU, at::kBFloat16);
      EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16) << "not the weight's cast from outside";
      const Autocast off(at::kCPU, {.enabled = false});
      EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kHalf);
  }
  expect_untouched();
}

TEST(Autocast, TheOutermostScopeOwnsTheCastsOfWeights) {
  const at::Tensor weight = at::rand({3, 3}).requires_grad_(true);
  const auto cast = [&] { return at::autocast::cached_cast(at::kHalf, weight, at::kCPU); };
  at::Tensor first;
  {
    const Autocast outer(at::kCPU, at::kHalf);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      first = cast();
    }
    EXPECT_TRUE(cast().is_same(first));
    const Autocast uncached(at::kCPU, {.dtype = at::kHalf, .cache_enabled = false});
    EXPECT_FALSE(cast().is_same(first));
  }
  const Autocast next(at::kCPU, at::kHalf);
  EXPECT_FALSE(cast().is_same(first));
}

TEST(Autocast, LeavesNothingBehindAfterAnException) {
  const auto leave_by_exception = [] {
    const Autocast outer(at::kCPU, at::kHalf);
    const Autocast inner(at::kCPU, {.dtype = at::kBFloat16, .cache_enabled = false});
    throw std::runtime_error("out of data");
  };
  std::thread([&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(leave_by_exception(), std::runtime_error);
      expect_untouched();
    }
  }).join();
  EXPECT_THROW(leave_by_exception(), std::runtime_error);
  expect_untouched();
}

TEST(Autocast, HoldsOnItsThreadAloneUnlessASnapshotTakesItAlong) {
  const Autocast scope(at::kCPU, at::kHalf);
  std::thread(expect_untouched).join();
  std::thread([snapshot = Snapshot()] {
    {
      const Autocast same(snapshot);
      EXPECT_EQ(autocast_dtype(), at::kHalf);
      EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kHalf);
      EXPECT_EQ(at::softmax(at::ones({2}, at::kHalf), 0).scalar_type(), at::kFloat);
    }
    expect_untouched();
  }).join();
  EXPECT_TRUE(autocasts());
}

TEST(Autocast, AScopeMayEndBeforeOneInsideIt) {
  auto outer = std::make_unique<Autocast>(at::kCPU, at::kHalf);
  auto inner = std::make_unique<Autocast>(at::kCPU, AutocastOptions{.dtype = at::kBFloat16, .cache_enabled = false});
  outer->ends_before(*inner);
  outer.reset();
  EXPECT_TRUE(autocasts());
  EXPECT_EQ(autocast_dtype(), at::kBFloat16);
  inner.reset();
  expect_untouched();
}

TEST(Autocast, ASnapshotOfAnotherDtypeDropsTheCastsOfWeights) {
  const at::Tensor weight = at::rand({3, 3}).requires_grad_(true), x = at::rand({2, 3});
  std::optional<Snapshot> half;
  {
    const Autocast scope(at::kCPU, at::kHalf);
    half.emplace();
  }
  const Autocast outer(at::kCPU, at::kBFloat16);
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
  {
    const Autocast again(*half);
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
}

TEST(Autocast, BackwardOnAnotherThreadGivesEachGradientInItsDtype) {
  const at::Tensor weight = at::rand({3, 3}).requires_grad_(true);
  at::Tensor hidden, loss;
  {
    const Autocast scope(at::kCPU, at::kHalf);
    hidden = at::linear(at::rand({2, 3}), weight);
    hidden.retain_grad();
    loss = at::softmax(hidden, 1).square().sum();
  }
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  std::thread([&] { loss.backward(); }).join();
  EXPECT_EQ(hidden.grad().scalar_type(), at::kHalf);
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  EXPECT_GT(weight.grad().abs().sum().item<float>(), 0);
}

TEST(Autocast, Fp8ScopesCombineWithIt) {
  const auto state = std::make_shared<ops::LinearState>();
  const at::Tensor weight = at::rand({16, 16}).requires_grad_(true), x = at::rand({4, 16});
  for (const auto format : {format::Format::kFp16, format::Format::kBf16}) {
    const at::ScalarType dtype = format == format::Format::kFp16 ? at::kHalf : at::kBFloat16;
    at::Tensor loss;
    {
      const Autocast outer(at::kCPU, dtype);
      const Fp8Autocast inner({.recipe = recipe::CurrentScaling{.high_precision_format = format}});
      const at::Tensor hidden = ops::linear(x, weight, {}, linear_scaling(state, weight));
      EXPECT_EQ(hidden.scalar_type(), dtype);
      const at::Tensor logits = at::linear(hidden, weight);
      EXPECT_EQ(logits.scalar_type(), dtype);
      loss = at::log_softmax(logits, 1).mean();
    }
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    weight.mutable_grad().reset();
    loss.backward();
    EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  }
  expect_untouched();
}

TEST(Autocast, TorchsOwnAutocastStaysAsItIs) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor x = at::ones({2, 2}, at::kHalf);
  EXPECT_EQ(at::softmax(x, 0).scalar_type(), at::kHalf);
  EXPECT_EQ(at::tensordot(x.to(at::kFloat), x.to(at::kFloat), {1}, {0}).scalar_type(), at::kBFloat16)
      << "the product inside is still autocast";
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(Autocast, BadUseIsNamed) {
  EXPECT_THAT([] { Autocast scope(at::kCPU, at::kDouble); },
              ThrowsMessage<c10::Error>(HasSubstr("expected a dtype of fp16 or bf16, got Double")));
  EXPECT_THAT([] { Autocast scope(at::kFPGA, at::kHalf); },
              ThrowsMessage<c10::Error>(HasSubstr("expected a device with autocast, got fpga")));
  expect_untouched();
}

}  // namespace
}  // namespace plimsoll::amp
