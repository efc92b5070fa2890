#include "plimsoll/autoscale/several_scales.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "plimsoll/autoscale/one_scale.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

// Values that 16 bits hold exactly.
at::Tensor small_matrix() { return at::arange(1, 7, at::kFloat).view({2, 3}); }
at::Tensor of_rows() { return at::tensor({3.0f, 0x1p-20f}).view({2, 1}); }

TEST(SeveralScales, AValueIsDataTimesScale) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor x = scaled_array(small_matrix(), of_rows(), session);
  EXPECT_TRUE(at::equal(value_of(x), small_matrix() * of_rows()));
  EXPECT_TRUE(at::equal(scale_of(x), of_rows()));
  EXPECT_TRUE(at::equal(scale_of(rebalance(x, at::tensor({4.0f}))), of_rows() * 4));
  const at::Tensor moved = set_scale(x, at::tensor({1.0f, 2.0f, 0.5f}));
  EXPECT_TRUE(at::equal(value_of(moved), value_of(x)));
  EXPECT_TRUE(at::equal(scale_of(moved).flatten(), at::tensor({1.0f, 2.0f, 0.5f})));
}

TEST(SeveralScales, AProductKeepsScalesOfRowsAndAnOperatorWithoutARuleIsCounted) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor x = scaled_array(small_matrix(), of_rows(), session);
  const at::Tensor y = as_scaled(small_matrix().t().contiguous(), session), product = at::mm(x, y);
  EXPECT_TRUE(at::equal(value_of(product), small_matrix().mm(small_matrix().t()) * of_rows()));
  EXPECT_FALSE(session->counts().contains(kOneScale));
  EXPECT_FALSE(has_scales(x + 1));
  EXPECT_EQ(session->counts().at(kOneScale).storage, 1);
}

// Each rule for several scales: the value to one rounding of FP16 data at the largest scale, the scales where they are
// kept, and no tensor rounded to one.
TEST(SeveralScales, OperatorsWithARuleKeepThem) {
  using Function = at::Tensor (*)(const at::Tensor& x, const at::Tensor& y);
  const Function ops[] = {
      [](const at::Tensor& x, const at::Tensor&) { return at::neg(x); },
      [](const at::Tensor& x, const at::Tensor&) { return x.to(at::kDouble); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::threshold_backward(x, y, 0); },
      [](const at::Tensor& x, const at::Tensor&) { return x.t(); },
      [](const at::Tensor& x, const at::Tensor&) { return x.slice(1, 1, 3); },
      [](const at::Tensor& x, const at::Tensor&) { return at::flip(x, {0}); },
      [](const at::Tensor& x, const at::Tensor&) { return at::stack(x.split(1), 0); },
      [](const at::Tensor& x, const at::Tensor&) {
        return x.view({3, 2});
      },
      [](const at::Tensor& x, const at::Tensor&) { return x.t().reshape({6}); },
      [](const at::Tensor& x, const at::Tensor&) { return x.detach(); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::mul(x, y); },
      [](const at::Tensor& x, const at::Tensor&) { return at::mul(x, 5); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::div(x, y); },
      [](const at::Tensor& x, const at::Tensor&) { return at::div(x, 4); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::add(x, y, 2); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::sub(x, y, 0.5); },
      [](const at::Tensor& x, const at::Tensor&) { return at::sum(x, {1}); },
      [](const at::Tensor& x, const at::Tensor&) { return at::amax(x, {1}, true); },
      [](const at::Tensor& x, const at::Tensor&) { return at::bmm(x.unsqueeze(0), x.t().unsqueeze(0)); },
  };
  const at::Tensor other = small_matrix().flip({1}), exact = (small_matrix() * of_rows()).to(at::kDouble);
  for (const Function& op : ops) {
    const auto session = std::make_shared<Session>(Settings{});
    const at::Tensor x = scaled_array(small_matrix(), of_rows(), session), y = as_scaled(other, session);
    const at::Tensor result = op(x, y), expected = op(exact, other.to(at::kDouble));
    const at::Tensor value = value_of(result).to(at::kDouble);
    ASSERT_EQ(result.sizes(), expected.sizes()) << &op - ops;
    EXPECT_TRUE((value - expected).abs().le(0x1p-11 * expected.abs()).all().item<bool>()) << &op - ops;
    const bool stacked = session->counts().contains(kOneScale);
    EXPECT_EQ(has_scales(result), !stacked) << &op - ops;
  }
}

TEST(SeveralScales, OperatorsInPlaceOnViewsAndWithoutARuleSeeOne) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor x = scaled_array(small_matrix(), of_rows(), session);
  EXPECT_TRUE(at::equal(value_of(x.as_strided({2, 2}, {3, 1})), (small_matrix() * of_rows()).slice(1, 0, 2)));
  EXPECT_GT(session->counts().at(kOneScale).storage, 0);
  EXPECT_THROW(x.detach().t_(), c10::Error);
  EXPECT_THROW(x.view(at::kShort), c10::Error);
}

TEST(SeveralScales, WhatIsNoScaleIsRefused) {
  const auto session = std::make_shared<Session>(Settings{});
  EXPECT_THROW(scaled_array(small_matrix(), at::tensor({1.0f, 2.0f}), session), c10::ValueError);
  EXPECT_THROW(scaled_array(small_matrix(), at::tensor({1.0f, 0.0f, 1.0f}), session), c10::ValueError);
  EXPECT_THROW(scaled_array(small_matrix() * 1e6, of_rows(), session), c10::Error);
}

}  // namespace
}  // namespace plimsoll::autoscale
