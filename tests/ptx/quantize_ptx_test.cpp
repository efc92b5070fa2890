// Kernels of quantize.cu against those of quantize_cpu.cpp, byte by byte.
#include <limits>

#include "plimsoll/kernels/quantize/block_scale.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_launch.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing::quantize_ptx_test {
namespace {

using kernels::testing::Content;
using kernels::testing::kCodeFormats;
using kernels::testing::kInputFormats;
using kernels::testing::TestMatrix;

struct Case {
  int64_t rows, cols, padding;
  size_t offset;  // bytes of x from an aligned address
};
// Widths around a thread's run and a block's tile, aligned and not; the last ones have 1e5 elements.
constexpr Case kCases[] = {{0, 5, 0, 0},   {5, 0, 3, 4},    {1, 1, 0, 0},    {3, 7, 1, 4},
                           {2, 8, 0, 0},   {2, 9, 7, 0},    {3, 31, 1, 4},   {2, 128, 0, 0},
                           {2, 129, 7, 0}, {1, 2047, 1, 0}, {2, 2049, 7, 0}, {65, 40, 0, 0}};
constexpr Case kLarge[] = {{100, 1000, 0, 0}, {49, 2041, 0, 4}};

std::string name_of(const char* kernel, Format x, Format code) {
  return std::string(kernel) + "_" + std::string(format::info(x).name) + "_" + std::string(format::info(code).name);
}

// x on the device, and where codes and amax come to stand there.
struct Device {
  Memory memory;
  uint64_t x, codes, amax;
  Matrix matrix;  // codes
  std::vector<uint8_t> expected;

  Device(const TestMatrix& source, Format code, const Case& shape)
      : matrix{shape.rows, shape.cols, shape.cols + shape.padding, code} {
    const Matrix input{shape.rows, shape.cols, source.stride, source.format};
    x = memory.add("x", source.data(), input.bytes(), shape.offset);
    codes = memory.add_unwritten("codes", matrix.bytes(), shape.offset);
    const float zero = 0;
    amax = memory.add("amax", &zero, sizeof(zero), 0, /*read_only=*/false);
    expected.resize(matrix.bytes());
  }

  void expect_codes(const std::string& where) {
    expect_same(matrix, memory.data(codes), expected.data(), /*exact=*/true, where);
  }
  void expect_amax(float wanted, const std::string& where) {
    EXPECT_EQ(difference(memory.data(amax), reinterpret_cast<const uint8_t*>(&wanted), sizeof(wanted)), "")
        << where << ": amax";
  }
};

void check_amax(const Module& module, Format x_format, const Case& shape, Content content) {
  const TestMatrix x(x_format, shape.rows, shape.cols, shape.padding, content);
  const std::string name = "amax_" + std::string(format::info(x_format).name);
  Device device(x, Format::kE4m3, shape);
  float amax = 0;
  kernels::Amax args{
      .x = x.data(), .x_format = x_format, .rows = shape.rows, .cols = shape.cols, .x_stride = x.stride, .amax = &amax};
  kernels::amax(args);
  args.x = pointer<void>(device.x);
  args.amax = pointer<float>(device.amax);
  launch(module.kernel(name), device.memory, kernels::amax_launch(args, kMultiprocessors), args);
  device.expect_amax(amax, name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
}

TEST(PtxAmax, HasTheBitsOfTheCpuKernel) {
  PLIMSOLL_MODULE("quantize");
  for (const Format x : kInputFormats) {
    for (const Content content : {Content::kAll, Content::kFinite}) {
      for (const Case& shape : kCases) check_amax(module, x, shape, content);
      for (const Case& shape : kLarge) check_amax(module, x, shape, content);
    }
  }
}

// One value that is larger than all others, at each place of a thread's runs, at both ends of a tile and in a tail.
TEST(PtxAmax, MissesNoElement) {
  PLIMSOLL_MODULE("quantize");
  constexpr int64_t kCols = 8203;
  for (const Format format : kInputFormats) {
    const std::string name = "amax_" + std::string(format::info(format).name);
    for (const int64_t at : {0, 1, 2, 3, 4, 5, 6, 7, 4095, 4096, 8191, 8192, 8199, 8200, 8202}) {
      kernels::testing::Array x(format, std::vector<float>(kCols));
      x.set(at, -3.0f);
      Memory memory;
      const float least = 2, expected = 3;
      const uint64_t amax = memory.add("amax", &least, sizeof(least), 0, /*read_only=*/false);
      const kernels::Amax args{
          .x = pointer<void>(memory.add("x", x.data(), static_cast<size_t>(kCols * format::bytes(format)))),
          .x_format = format,
          .rows = 1,
          .cols = kCols,
          .x_stride = kCols,
          .amax = pointer<float>(amax)};
      launch(module.kernel(name), memory, kernels::amax_launch(args, kMultiprocessors), args);
      ASSERT_EQ(difference(memory.data(amax), reinterpret_cast<const uint8_t*>(&expected), 4), "")
          << name << ", " << at;
    }
  }
}

TEST(PtxTensorScale, HasTheBitsOfTheHost) {
  PLIMSOLL_MODULE("quantize");
  for (const float amax : {0.0f, 1e-45f, 1e-38f, 0.3f, 448.0f, 449.0f, 57345.0f, std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const float max_finite : {448.0f, 57344.0f}) {
      for (const bool power_of_two : {false, true}) {
        const float expected = kernels::fp32_block_scale(amax, max_finite, power_of_two);
        Memory memory;
        const uint64_t scale = memory.add_unwritten("scale", sizeof(float));
        const kernels::TensorScale args{.amax = pointer<float>(memory.add("amax", &amax, sizeof(amax))),
                                        .scale = pointer<float>(scale),
                                        .max_finite = max_finite,
                                        .power_of_two = power_of_two};
        launch(module.kernel("tensor_scale"), memory, kernels::kTensorScaleLaunch, args);
        EXPECT_EQ(difference(memory.data(scale), reinterpret_cast<const uint8_t*>(&expected), 4), "")
            << amax << " / " << max_finite << (power_of_two ? " as a power of two" : "");
      }
    }
  }
}

void check_tensor(const Module& module, Format x_format, Format code, const Case& shape, float scale) {
  const TestMatrix x(x_format, shape.rows, shape.cols, shape.padding, Content::kAll);
  const std::string name = name_of("quantize_tensor", x_format, code);
  const std::string where = name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
  Device device(x, code, shape);
  float amax = 0;
  kernels::QuantizeTensor args{.x = x.data(),
                               .x_format = x_format,
                               .rows = shape.rows,
                               .cols = shape.cols,
                               .x_stride = x.stride,
                               .codes = device.expected.data(),
                               .format = code,
                               .codes_stride = device.matrix.stride,
                               .scale = &scale,
                               .amax = &amax};
  kernels::quantize_tensor(args);
  args.x = pointer<void>(device.x);
  args.codes = pointer<uint8_t>(device.codes);
  args.scale = pointer<float>(device.memory.add("scale", &scale, sizeof(scale)));
  args.amax = pointer<float>(device.amax);
  launch(module.kernel(name), device.memory, kernels::quantize_tensor_launch(args, kMultiprocessors), args);
  device.expect_codes(where);
  device.expect_amax(amax, where);
}

TEST(PtxQuantizeTensor, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("quantize");
  for (const Format x : kInputFormats) {
    for (const Format code : kCodeFormats) {
      for (const Case& shape : kCases) check_tensor(module, x, code, shape, 0.37f);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxQuantizeTensor, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("quantize");
  for (const Case& shape : kLarge) {
    check_tensor(module, Format::kBf16, Format::kE4m3, shape, 0.01f);
    check_tensor(module, Format::kFp32, Format::kE5m2, shape, 3.0f);
  }
}

TEST(PtxQuantizeTensor, TakesNoScaleForOne) {
  PLIMSOLL_MODULE("quantize");
  check_tensor(module, Format::kFp16, Format::kE4m3, {3, 40, 0, 0}, 0.0f);
}

struct Blocks {
  const char* kernel;
  int64_t rows, cols;  // of a block; 0: all columns
  kernels::Launch (*launch)(const kernels::QuantizeBlocks& args, int multiprocessors);
};
constexpr Blocks kBlocks[] = {{"quantize_groups128", 1, 128, kernels::quantize_groups_launch},
                              {"quantize_groups32", 1, 32, kernels::quantize_groups_launch},
                              {"quantize_rows", 1, 0, kernels::quantize_rows_launch},
                              {"quantize_squares", 128, 128, kernels::quantize_squares_launch},
                              {"quantize_columns", 32, 1, kernels::quantize_columns_launch}};
// Heights around those of blocks of several rows.
constexpr Case kTall[] = {{31, 20, 0, 0},  {32, 64, 0, 0},   {33, 65, 7, 4},  {64, 256, 0, 0},
                          {127, 40, 0, 0}, {129, 130, 6, 0}, {160, 12, 4, 4}, {257, 33, 15, 0}};

struct ScaleKind {
  Format format;
  bool power_of_two;
  format::ScaleRounding rounding;
};
constexpr ScaleKind kScales[] = {{Format::kFp32, false, format::ScaleRounding::kUp},
                                 {Format::kFp32, true, format::ScaleRounding::kUp},
                                 {Format::kE8m0, false, format::ScaleRounding::kUp},
                                 {Format::kE8m0, false, format::ScaleRounding::kDown}};

void check_blocks(const Module& module, const Blocks& blocks, Format x_format, Format code, const Case& shape,
                  const ScaleKind& kind, Content content) {
  const TestMatrix x(x_format, shape.rows, shape.cols, shape.padding, content);
  const std::string name = name_of(blocks.kernel, x_format, code);
  const std::string where = name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
  Device device(x, code, shape);
  const int64_t across = blocks.cols == 0 ? 1 : kernels::pieces_of(shape.cols, blocks.cols);
  const int64_t down = kernels::pieces_of(shape.rows, blocks.rows);
  const Matrix scales{down, shape.cols == 0 ? 0 : across, across, kind.format};
  std::vector<uint8_t> scale(scales.bytes());
  float amax = 0;
  kernels::QuantizeBlocks args{.x = x.data(),
                               .x_format = x_format,
                               .rows = shape.rows,
                               .cols = shape.cols,
                               .x_stride = x.stride,
                               .codes = device.expected.data(),
                               .format = code,
                               .codes_stride = device.matrix.stride,
                               .block_rows = blocks.rows,
                               .block_cols = blocks.cols,
                               .scale = scale.data(),
                               .scale_format = kind.format,
                               .scale_stride = across,
                               .power_of_two = kind.power_of_two,
                               .rounding = kind.rounding,
                               .amax = &amax};
  kernels::quantize_blocks(args);
  args.x = pointer<void>(device.x);
  args.codes = pointer<uint8_t>(device.codes);
  args.scale = pointer<void>(device.memory.add_unwritten("scale", scales.bytes()));
  args.amax = pointer<float>(device.amax);
  launch(module.kernel(name), device.memory, blocks.launch(args, kMultiprocessors), args);
  device.expect_codes(where);
  device.expect_amax(amax, where);
  expect_same(scales, device.memory.data(reinterpret_cast<uint64_t>(args.scale)), scale.data(), /*exact=*/true,
              where + ": scale");
}

TEST(PtxQuantizeBlocks, HaveTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("quantize");
  for (const Blocks& blocks : kBlocks) {
    for (const Format x : kInputFormats) {
      for (const Format code : kCodeFormats) {
        for (const Case& shape : kCases) check_blocks(module, blocks, x, code, shape, kScales[0], Content::kAll);
        if (blocks.rows == 1) continue;
        for (const Case& shape : kTall) check_blocks(module, blocks, x, code, shape, kScales[0], Content::kFinite);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PtxQuantizeBlocks, HaveTheScalesOfTheCpuKernelOfEachKind) {
  PLIMSOLL_MODULE("quantize");
  for (const Blocks& blocks : kBlocks) {
    for (const Format code : kCodeFormats) {
      for (const ScaleKind& kind : kScales) {
        for (const Content content : {Content::kAll, Content::kFinite}) {
          check_blocks(module, blocks, Format::kFp32, code, {17, 300, 0, 0}, kind, content);
        }
      }
    }
  }
}

TEST(PtxQuantizeBlocks, HaveTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("quantize");
  for (const Blocks& blocks : kBlocks) {
    for (const Case& shape : kLarge) {
      check_blocks(module, blocks, Format::kBf16, Format::kE4m3, shape, kScales[0], Content::kFinite);
    }
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::quantize_ptx_test
