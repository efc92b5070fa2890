#include "plimsoll/ops/tensor/gemm_batched.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using testing::leaf;
using testing::sample;

// k roundings of the sum, one of the output.
at::Tensor bound(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  const at::Tensor terms = a.to(at::kDouble).abs().bmm(b.to(at::kDouble).abs());
  const double sum = static_cast<double>(a.size(2) + kernels::kGemmExtraRoundings) * 0x1p-24;
  const format::Format format = format_of(dtype, "test");
  return terms * (sum + (1 + sum) * testing::unit_roundoff(format)) + format::info(format).min_subnormal;
}

void expect_product(const at::Tensor& got, const at::Tensor& a, const at::Tensor& b, const std::string& name) {
  ASSERT_EQ(got.scalar_type(), a.scalar_type()) << name;
  testing::expect_within(got, a.to(at::kDouble).bmm(b.to(at::kDouble)), bound(a, b, a.scalar_type()), name);
}

TEST(BatchedGemm, ValuesAndGradientsAreNearDouble) {
  at::manual_seed(1);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [batch, m, k, n] : {std::array<int64_t, 4>{1, 1, 1, 1}, {3, 5, 33, 17}, {2, 65, 20, 40}}) {
      const at::Tensor a = leaf(sample({batch, m, k}), dtype), b = leaf(sample({batch, k, n}), dtype);
      const at::Tensor grad = sample({batch, m, n}).to(dtype), output = batched_gemm(a, b);
      expect_product(output.detach(), a.detach(), b.detach(), "output");
      torch::autograd::backward({output}, {grad});
      expect_product(a.grad(), grad, b.detach().transpose(1, 2), "grad of a");
      expect_product(b.grad(), a.detach().transpose(1, 2), grad, "grad of b");
    }
  }
}

TEST(BatchedGemm, TakesAnyStridesAndNothing) {
  at::manual_seed(1);
  const at::Tensor a = sample({4, 6, 10}), b = sample({4, 10, 8});
  const at::Tensor expected = batched_gemm(a, b);
  auto expect_same = [&](const at::Tensor& a_view, const at::Tensor& b_view) {
    EXPECT_TRUE(at::equal(batched_gemm(a_view, b_view), expected));
  };
  expect_same(a.transpose(1, 2).contiguous().transpose(1, 2), b);
  expect_same(a, b.transpose(1, 2).contiguous().transpose(1, 2));
  expect_same(a.permute({2, 0, 1}).contiguous().permute({1, 2, 0}),
              b.permute({2, 1, 0}).contiguous().permute({2, 1, 0}));
  expect_same(at::stack({a, a}, 3).select(3, 1), at::stack({b, b}, 3).select(3, 0));
  const at::Tensor shared = b.slice(0, 0, 1).expand({4, 10, 8});
  EXPECT_TRUE(at::equal(batched_gemm(a, shared), batched_gemm(a, shared.contiguous())));
  EXPECT_EQ(batched_gemm(at::empty({0, 3, 4}), at::empty({0, 4, 5})).sizes(), (std::vector<int64_t>{0, 3, 5}));
  EXPECT_TRUE(at::equal(batched_gemm(at::empty({2, 3, 0}), at::empty({2, 0, 5})), at::zeros({2, 3, 5})));
}

TEST(BatchedGemm, RefusesWhatDoesNotFit) {
  const at::Tensor a = sample({2, 3, 4});
  EXPECT_THROW(batched_gemm(a, sample({2, 5, 4})), c10::Error);
  EXPECT_THROW(batched_gemm(a, sample({3, 4, 5})), c10::Error);
  EXPECT_THROW(batched_gemm(a, sample({4, 5})), c10::Error);
  EXPECT_THROW(batched_gemm(a, sample({2, 4, 5}).to(at::kHalf)), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
