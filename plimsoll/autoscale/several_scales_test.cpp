#include "plimsoll/autoscale/several_scales.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "plimsoll/autoscale/one_scale.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

// What 16 bits hold as it is.
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

TEST(SeveralScales, WhatIsNoScaleIsRefused) {
  const auto session = std::make_shared<Session>(Settings{});
  EXPECT_THROW(scaled_array(small_matrix(), at::tensor({1.0f, 2.0f}), session), c10::ValueError);
  EXPECT_THROW(scaled_array(small_matrix(), at::tensor({1.0f, 0.0f, 1.0f}), session), c10::ValueError);
  EXPECT_THROW(scaled_array(small_matrix() * 1e6, of_rows(), session), c10::Error);
}

}  // namespace
}  // namespace plimsoll::autoscale
