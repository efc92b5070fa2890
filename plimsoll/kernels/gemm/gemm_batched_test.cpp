// Batches against the exact product of each, and against gemm, whose bits they must have.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plimsoll/kernels/gemm/gemm_test_support.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {
namespace {

struct Batch {
  std::vector<float> output;
  float amax = 0;
};

// Rows of one tall operand are the operands of the batch.
Batch multiply_batch(const Operand& a, const Operand& b, int64_t batch, int64_t m, int64_t n, int64_t k,
                     GemmEpilogue epilogue = {}) {
  const int64_t gap = 5;  // between outputs
  Batch result{std::vector<float>(static_cast<size_t>(batch * (m * n + gap)), 77.0f)};
  const GemmOperand a_view = a.view(), b_view = b.view();
  epilogue.amax = &result.amax;
  gemm_batched({.first = {.a = a_view,
                          .b = b_view,
                          .m = m,
                          .n = n,
                          .k = k,
                          .output = result.output.data(),
                          .output_stride = n,
                          .epilogue = epilogue},
                .batch = batch,
                .a_step = m * a_view.row_stride,
                .b_step = n * b_view.row_stride,
                .output_step = m * n + gap});
  for (int64_t i = 0; i < batch; ++i) {
    const auto begin = result.output.begin() + i * m * n;
    EXPECT_TRUE(std::all_of(begin + m * n, begin + m * n + gap, [](float x) { return x == 77.0f; }));
    result.output.erase(begin + m * n, begin + m * n + gap);
  }
  return result;
}

TEST(GemmBatched, EachProductIsWithinTheBound) {
  const int64_t m = 9, n = 35, k = 70;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : kOperandFormats) {
      for (Layout layout : {Layout::kKContiguous, Layout::kRowContiguous}) {
        for (int64_t batch : {0, 1, 5}) {
          const Operand a(batch * m, k, format, 1, {.layout = layout}), b(batch * n, k, format, 2, {.layout = layout});
          const Exact all = exact_product(a, b, batch * m, batch * n, k);
          const Batch actual = multiply_batch(a, b, batch, m, n, k);
          float largest = 0;
          for (int64_t i = 0; i < batch * m * n; ++i) {
            const int64_t product = i / (m * n), row = product * m + i / n % m, column = product * n + i % n;
            const size_t exact = static_cast<size_t>(row * batch * n + column), index = static_cast<size_t>(i);
            ASSERT_PRED3(within, actual.output[index], all.value[exact], all.tolerance[exact])
                << describe(format, format, m, n, k, isa);
            largest = std::max(largest, std::abs(actual.output[index]));
          }
          EXPECT_EQ(actual.amax, largest);
        }
      }
    }
  }
}

TEST(GemmBatched, HasTheBitsOfGemmForAnyNumberOfThreads) {
  const int64_t batch = 5, m = 20, n = 40, k = 700;  // products large enough to be divided, or not
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (int64_t rows : {m, 8 * m}) {
      const Operand a(batch * rows, k, Format::kBf16, 1), b(batch * n, k, Format::kE4m3, 2);
      const std::vector<float> bias(static_cast<size_t>(n), 0.5f);
      std::vector<float> expected;
      for (int64_t i = 0; i < batch; ++i) {
        GemmOperand a_view = a.view(), b_view = b.view();
        a_view.data = static_cast<const uint16_t*>(a_view.data) + i * rows * k;
        b_view.data = static_cast<const uint8_t*>(b_view.data) + i * n * k;
        std::vector<float> one(static_cast<size_t>(rows * n));
        gemm({.a = a_view,
              .b = b_view,
              .m = rows,
              .n = n,
              .k = k,
              .output = one.data(),
              .output_stride = n,
              .epilogue = {.alpha = 0.25f, .bias = bias.data()}});
        expected.insert(expected.end(), one.begin(), one.end());
      }
      for (int threads : {1, 2, 3, 7}) {
        ScopedThreads scoped(threads);
        EXPECT_EQ(multiply_batch(a, b, batch, rows, n, k, {.alpha = 0.25f, .bias = bias.data()}).output, expected)
            << runtime::name(isa) << " threads " << threads;
      }
    }
  }
}

TEST(GemmBatched, AStepOfZeroSharesAnOperand) {
  const int64_t batch = 3, m = 4, n = 6, k = 10;
  const Operand a(batch * m, k, Format::kFp32, 1), b(n, k, Format::kFp32, 2);
  std::vector<float> output(static_cast<size_t>(batch * m * n));
  gemm_batched(
      {.first = {.a = a.view(), .b = b.view(), .m = m, .n = n, .k = k, .output = output.data(), .output_stride = n},
       .batch = batch,
       .a_step = m * k,
       .output_step = m * n});
  EXPECT_EQ(output, product(a, b, batch * m, n, k));
}

}  // namespace
}  // namespace plimsoll::kernels::testing
