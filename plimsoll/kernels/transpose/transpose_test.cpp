#include "plimsoll/kernels/transpose/transpose.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kSizes[] = {0, 1, 3, 15, 16, 17, 31, 32, 33, 64, 257};

template <class Element>
void expect_transposed(int64_t rows, int64_t cols, int64_t padding) {
  const int64_t x_stride = cols + padding, output_stride = rows + padding;
  // One element in front of each: no alignment may be assumed.
  std::vector<Element> x(static_cast<size_t>(rows * x_stride + 1));
  std::vector<Element> output(static_cast<size_t>(cols * output_stride + 1), Element{0x5a});
  std::mt19937 random(3);
  for (Element& element : x) element = static_cast<Element>(random());
  transpose({.x = x.data() + 1,
             .element_bytes = sizeof(Element),
             .rows = rows,
             .cols = cols,
             .x_stride = x_stride,
             .output = output.data() + 1,
             .output_stride = output_stride});
  ASSERT_EQ(output[0], Element{0x5a});
  for (int64_t col = 0; col < cols; ++col) {
    for (int64_t row = 0; row < output_stride; ++row) {
      const Element expected = row < rows ? x[static_cast<size_t>(row * x_stride + col + 1)] : Element{0x5a};
      ASSERT_EQ(output[static_cast<size_t>(col * output_stride + row + 1)], expected) << rows << " x " << cols;
    }
  }
}

TEST(Transpose, MovesEveryElementOfEveryShapeAndTouchesNothingElse) {
  for (const runtime::Isa isa : {runtime::Isa::kPortable, runtime::Isa::kAvx2, runtime::Isa::kAvx512}) {
    if (isa > runtime::detected_isa()) continue;
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const int64_t rows : kSizes) {
      for (const int64_t cols : kSizes) {
        for (const int64_t padding : {0, 5}) {
          ASSERT_NO_FATAL_FAILURE(expect_transposed<uint8_t>(rows, cols, padding));
          ASSERT_NO_FATAL_FAILURE(expect_transposed<uint16_t>(rows, cols, padding));
          ASSERT_NO_FATAL_FAILURE(expect_transposed<uint32_t>(rows, cols, padding));
        }
      }
    }
  }
}

// Matrices larger than the caches are written in whole lines of 64 bytes, where they are aligned.
template <class Element>
void expect_large_transposed(int64_t rows, int64_t cols) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  const int64_t output_stride = (rows + kLine - 1) / kLine * kLine;
  std::vector<Element> x(static_cast<size_t>(rows * cols)), storage(static_cast<size_t>(cols * output_stride + kLine));
  std::mt19937 random(5);
  for (Element& element : x) element = static_cast<Element>(random());
  void* aligned = storage.data();
  size_t space = storage.size() * sizeof(Element);
  std::align(64, static_cast<size_t>(cols * output_stride) * sizeof(Element), aligned, space);
  auto* output = static_cast<Element*>(aligned);
  transpose({.x = x.data(),
             .element_bytes = sizeof(Element),
             .rows = rows,
             .cols = cols,
             .x_stride = cols,
             .output = output,
             .output_stride = output_stride});
  for (int64_t col = 0; col < cols; ++col) {
    for (int64_t row = 0; row < output_stride; ++row) {
      const Element expected = row < rows ? x[static_cast<size_t>(row * cols + col)] : Element{0};
      ASSERT_EQ(output[col * output_stride + row], expected) << row << ", " << col;
    }
  }
}

TEST(Transpose, MovesEveryElementOfALargeMatrix) {
  expect_large_transposed<uint8_t>(2239, 2053);
  expect_large_transposed<uint16_t>(1601, 1411);
  expect_large_transposed<uint32_t>(1201, 1033);
}

TEST(Transpose, IsTheSameForAnyThreadCount) {
  const int before = runtime::threads();
  for (const int threads : {1, 2, 3, 7}) {
    runtime::set_threads(threads);
    expect_transposed<uint8_t>(517, 1031, 3);
    expect_transposed<uint32_t>(517, 1031, 3);
  }
  runtime::set_threads(before);
}

}  // namespace
}  // namespace plimsoll::kernels
