// Kernels of transpose.cu against those of transpose_cpu.cpp, byte by byte.
#include <random>
#include <set>

#include "plimsoll/kernels/transpose/transpose.h"
#include "plimsoll/kernels/transpose/transpose_launch.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing::transpose_ptx_test {
namespace {

struct Case {
  int64_t rows, cols, x_padding, output_padding;
  size_t offset;  // bytes of both from an aligned address
};
// Sides around a cell's and a tile's, aligned and not; the last ones have 1e5 elements.
constexpr Case kCases[] = {{0, 5, 0, 0, 0},     {5, 0, 0, 0, 0},    {1, 1, 0, 0, 0},     {3, 7, 1, 3, 4},
                           {8, 8, 0, 0, 0},     {64, 64, 0, 0, 0},  {63, 65, 1, 1, 0},   {128, 128, 0, 16, 0},
                           {129, 127, 1, 7, 4}, {1, 300, 4, 15, 0}, {300, 1, 15, 4, 0},  {136, 24, 8, 8, 8},
                           {17, 200, 0, 3, 0},  {200, 17, 3, 0, 0}, {80, 144, 16, 16, 4}};
constexpr Case kLarge[] = {{320, 320, 0, 0, 0}, {401, 250, 6, 7, 4}};

// A matrix of elements of 1, 2 or 4 bytes; in expect_same() only its bytes count.
Matrix matrix_of(int64_t rows, int64_t cols, int64_t stride, int64_t element_bytes) {
  return {rows, cols, stride, element_bytes == 1 ? Format::kE4m3 : element_bytes == 2 ? Format::kBf16 : Format::kFp32};
}

void check_transpose(const Module& module, int64_t bytes, const Case& shape) {
  const std::string name = "transpose_" + std::to_string(bytes);
  const Matrix x = matrix_of(shape.rows, shape.cols, shape.cols + shape.x_padding, bytes);
  const Matrix output = matrix_of(shape.cols, shape.rows, shape.rows + shape.output_padding, bytes);
  std::vector<uint8_t> source(x.bytes()), expected(output.bytes());
  std::mt19937 random(7);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  kernels::Transpose args{.x = source.data(),
                          .element_bytes = bytes,
                          .rows = shape.rows,
                          .cols = shape.cols,
                          .x_stride = x.stride,
                          .output = expected.data(),
                          .output_stride = output.stride};
  kernels::transpose(args);
  Memory memory;
  const uint64_t written = memory.add_unwritten("output", output.bytes(), shape.offset);
  args.x = pointer<void>(memory.add("x", source.data(), source.size(), shape.offset));
  args.output = pointer<void>(written);
  launch(module.kernel(name), memory, kernels::transpose_launch(args, kMultiprocessors), args);
  expect_same(output, memory.data(written), expected.data(), /*exact=*/true,
              name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
}

TEST(PtxTranspose, MovesEveryElementAsTheCpuKernelDoes) {
  PLIMSOLL_MODULE("transpose");
  for (const int64_t bytes : {1, 2, 4}) {
    for (const Case& shape : kCases) {
      check_transpose(module, bytes, shape);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxTranspose, MovesAHundredThousandElementsAsTheCpuKernelDoes) {
  PLIMSOLL_MODULE("transpose");
  for (const int64_t bytes : {1, 2, 4}) {
    for (const Case& shape : kLarge) check_transpose(module, bytes, shape);
  }
}

// Lanes that shared memory serves at once: those that have its 128 bytes together. Each must find its chunk in other banks.
int64_t banks_of_lanes(int lane, int64_t element_bytes, bool stores, int i) {
  const int side = kernels::transpose_side(element_bytes);
  const auto chunk_bytes = static_cast<int>(side * element_bytes), lanes = 128 / chunk_bytes;
  std::set<int> places;  // in chunks, in a line over all banks
  for (int thread = lane; thread < lane + lanes; ++thread) {
    const int across = thread % kernels::kTransposeCells, down = thread / kernels::kTransposeCells;
    places.insert((stores ? kernels::transpose_place(across * side + i, down, side)
                          : kernels::transpose_place(i * kernels::kTransposeCells + down, across, side)) %
                  lanes);
  }
  return static_cast<int64_t>(places.size()) * chunk_bytes;
}

TEST(PtxTranspose, HasNoBankConflicts) {
  for (const int64_t bytes : {1, 2, 4}) {
    const int side = kernels::transpose_side(bytes), lanes = static_cast<int>(128 / (side * bytes));
    for (int lane = 0; lane < kernels::kTransposeThreads; lane += lanes) {
      for (int i = 0; i < side; ++i) {
        ASSERT_EQ(banks_of_lanes(lane, bytes, /*stores=*/true, i), 128)
            << bytes << ", lane " << lane << ", chunk " << i;
        ASSERT_EQ(banks_of_lanes(lane, bytes, /*stores=*/false, i), 128)
            << bytes << ", lane " << lane << ", chunk " << i;
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::transpose_ptx_test
