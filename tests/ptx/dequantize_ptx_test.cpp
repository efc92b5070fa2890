// Kernels of dequantize.cu against those of dequantize_cpu.cpp, byte by byte.
#include <random>

#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/kernels/dequantize/dequantize_launch.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing::dequantize_ptx_test {
namespace {

struct Case {
  int64_t rows, cols, padding;
  size_t offset;  // bytes of the codes from an aligned address
  int64_t block_rows, block_cols;
};
constexpr Case kCases[] = {{0, 3, 0, 0, 0, 0},        {2, 0, 1, 0, 0, 0},    {1, 256, 0, 0, 0, 0},
                           {3, 7, 1, 1, 1, 0},        {4, 65, 7, 0, 1, 32},  {5, 2049, 7, 0, 2, 128},
                           {3, 2048, 0, 8, 0, 1},     {2, 300, 4, 0, 1, 12}, {40, 17, 0, 3, 16, 0},
                           {2, 4100, 4, 0, 128, 128}, {9, 1000, 0, 0, 0, 0}, {1, 8200, 0, 0, 1, 128}};

void check(const Module& module, Format code, Format output, const Case& shape, Format scale_format) {
  const std::string name =
      "dequantize_" + std::string(format::info(code).name) + "_" + std::string(format::info(output).name);
  const std::string where = name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
  std::mt19937 random(7);
  const Matrix codes{shape.rows, shape.cols, shape.cols + shape.padding, code};
  const Matrix outputs{shape.rows, shape.cols, shape.cols + shape.padding, output};
  std::vector<uint8_t> source(codes.bytes()), expected(outputs.bytes());
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i < 256 ? i : random());
  const int64_t down = shape.block_rows == 0 ? 1 : kernels::pieces_of(shape.rows, shape.block_rows);
  const int64_t across = shape.block_cols == 0 ? 1 : kernels::pieces_of(shape.cols, shape.block_cols);
  const Matrix scales{down, across, across, scale_format};
  std::vector<uint8_t> scale(scales.bytes());
  for (int64_t i = 0; i < down * across; ++i) {
    constexpr float kScales[] = {1.0f, 0.3f, -1.7f, 1e-3f, 3e-40f, 1e36f, 0x1p-120f};
    const float value = kScales[random() % std::size(kScales)];
    const uint32_t stored = scale_format == Format::kFp32 ? format::encode(Format::kFp32, value) : random() % 256;
    std::memcpy(scale.data() + i * format::bytes(scale_format), &stored,
                static_cast<size_t>(format::bytes(scale_format)));
  }
  kernels::Dequantize args{.codes = source.data(),
                           .format = code,
                           .rows = shape.rows,
                           .cols = shape.cols,
                           .codes_stride = codes.stride,
                           .scale = {.data = scale.data(),
                                     .format = scale_format,
                                     .block_rows = shape.block_rows,
                                     .block_cols = shape.block_cols,
                                     .row_stride = across,
                                     .col_stride = 1},
                           .output = expected.data(),
                           .output_format = output,
                           .output_stride = outputs.stride};
  kernels::dequantize(args);
  Memory memory;
  args.codes = pointer<uint8_t>(memory.add("codes", source.data(), source.size(), shape.offset));
  args.scale.data = pointer<void>(memory.add("scale", scale.data(), scale.size()));
  args.output = pointer<void>(memory.add_unwritten("output", outputs.bytes(), 4 * shape.offset));
  launch(module.kernel(name), memory, kernels::dequantize_launch(args, kMultiprocessors), args);
  expect_same(outputs, memory.data(reinterpret_cast<uint64_t>(args.output)), expected.data(), /*exact=*/true, where);
}

TEST(PtxDequantize, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("dequantize");
  for (const Format code : {Format::kE4m3, Format::kE5m2}) {
    for (const Format output : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (const Case& shape : kCases) {
        check(module, code, output, shape, Format::kFp32);
        check(module, code, output, shape, Format::kE8m0);
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxDequantize, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("dequantize");
  check(module, Format::kE4m3, Format::kBf16, {100, 1000, 0, 0, 1, 128}, Format::kFp32);
  check(module, Format::kE5m2, Format::kFp32, {49, 2041, 1, 1, 0, 0}, Format::kFp32);
}

}  // namespace
}  // namespace plimsoll::ptx::testing::dequantize_ptx_test
