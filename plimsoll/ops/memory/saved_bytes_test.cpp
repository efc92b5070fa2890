#include "plimsoll/ops/memory/saved_bytes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>

namespace plimsoll::ops {
namespace {

at::Tensor parameter(int64_t size) { return at::ones({size}).requires_grad_(true); }

TEST(SavedBytesCounter, CountsWhatIsSavedOnce) {
  const at::Tensor x = parameter(100);
  const SavedBytesCounter counter({});
  const at::Tensor y = at::sigmoid(x);  // saves y
  EXPECT_EQ(counter.bytes(), 400);
  const at::Tensor z = y * y;  // saves y again, twice
  EXPECT_EQ(counter.bytes(), 400);
}

TEST(SavedBytesCounter, LeavesParametersOut) {
  const at::Tensor x = parameter(100), weight = parameter(100);
  const SavedBytesCounter counter({weight});
  const at::Tensor y = x * weight;  // saves both
  EXPECT_EQ(counter.bytes(), 400);
}

TEST(SavedBytesCounter, CountsNothingWithoutGradients) {
  const SavedBytesCounter counter({});
  at::sigmoid(at::ones({100}));
  EXPECT_EQ(counter.bytes(), 0);
}

TEST(SavedBytesCounter, AGraphWithoutBackwardIsGivenUp) {
  const SavedBytesCounter counter({});
  { const at::Tensor y = at::sigmoid(parameter(100)); }
  EXPECT_EQ(counter.bytes(), 0);
}

TEST(SavedBytesCounter, BackwardIsUnchangedInsideAndAfter) {
  const at::Tensor x = parameter(3);
  at::Tensor loss;
  {
    const SavedBytesCounter counter({});
    loss = (x * x).sum();
  }
  loss.backward();
  EXPECT_EQ(x.grad().sum().item<float>(), 6.0f);
  const int64_t before = SavedBytesCounter({}).bytes();
  (x * x).sum().backward();
  EXPECT_EQ(x.grad().sum().item<float>(), 12.0f);
  EXPECT_EQ(before, 0);
}

}  // namespace
}  // namespace plimsoll::ops
