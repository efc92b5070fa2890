// Kernels of norm_backward.cu against those of norm_cpu.cpp: the same codes of every number; any NaN counts as any other.
#include <limits>

#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/kernels/norm/norm_launch.h"
#include "tests/ptx/array_testing.h"

namespace plimsoll::ptx::testing::norm_backward_ptx_test {
namespace {

using kernels::NormBackward;
using kernels::NormKind;
using kernels::testing::Array;
using kernels::testing::sample;

constexpr Format kWide[] = {Format::kFp32, Format::kBf16, Format::kFp16};

struct Case {
  NormKind kind;
  int64_t rows, cols;
  bool residual, zero_centered, dweight, dbias;
  size_t offset = 0;  // bytes of each array from an aligned address
};
// Widths around a run, a piece of 1,024 and what a team holds; rows around teams, a block of 64 and a group of blocks.
constexpr Case kCases[] = {{NormKind::kLayerNorm, 0, 8, false, false, true, true},
                           {NormKind::kLayerNorm, 3, 0, true, false, true, true},
                           {NormKind::kLayerNorm, 1, 1, false, true, true, true},
                           {NormKind::kRmsNorm, 65, 7, true, true, true, false},
                           {NormKind::kLayerNorm, 64, 64, false, false, true, true},
                           {NormKind::kLayerNorm, 129, 66, true, true, false, true},
                           {NormKind::kRmsNorm, 3, 1026, true, false, false, false},
                           {NormKind::kLayerNorm, 2, 1024, true, false, true, true},
                           {NormKind::kRmsNorm, 2, 1024, false, false, true, true, 4},
                           {NormKind::kLayerNorm, 3, 2047, false, true, true, true},
                           {NormKind::kLayerNorm, 1, 9001, true, false, true, true},
                           {NormKind::kLayerNorm, 1, 9216, false, false, true, true},
                           {NormKind::kRmsNorm, 1, 16900, true, true, true, false},
                           {NormKind::kRmsNorm, 18, 132, true, false, true, true},
                           {NormKind::kLayerNorm, 3, 3000, true, false, true, true},
                           {NormKind::kLayerNorm, 6200, 5, false, false, true, true}};

// Arrays of one case, and what the CPU's kernel makes of them.
struct Arrays {
  Array dy, x, residual, weight, mean, rstd, dx, dweight, dbias;

  Arrays(Format format, const Case& shape, float worst)
      : dy(format, sample(shape.rows * shape.cols, 1)),
        x(format, sample(shape.rows * shape.cols, 2, 0.5f)),
        residual(format, sample(shape.rows * shape.cols, 3)),
        weight(Format::kFp32, sample(shape.cols, 4, 1.0f, 0.2f)),
        mean(Format::kFp32, sample(shape.rows, 5, 0.5f, 0.1f)),
        rstd(Format::kFp32, sample(shape.rows, 6, 1.0f, 0.1f)),
        dx(format, shape.rows * shape.cols),
        dweight(Format::kFp32, shape.cols),
        dbias(Format::kFp32, shape.cols) {
    if (worst == 0) return;
    dy.set(dy.count() / 2, worst);
    x.set(x.count() / 3, worst);
  }
};

void check(const Module& module, Format format, const Case& shape, float worst = 0) {
  const std::string name = name_of(format);
  const std::string where = name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
  Arrays arrays(format, shape, worst);
  NormBackward args{.kind = shape.kind,
                    .rows = shape.rows,
                    .cols = shape.cols,
                    .dy = arrays.dy.data(),
                    .dy_format = format,
                    .x = arrays.x.data(),
                    .x_format = format,
                    .weight = arrays.weight.floats(),
                    .zero_centered = shape.zero_centered,
                    .mean = shape.kind == NormKind::kLayerNorm ? arrays.mean.floats() : nullptr,
                    .rstd = arrays.rstd.floats(),
                    .dresidual = shape.residual ? arrays.residual.data() : nullptr,
                    .dx = arrays.dx.data(),
                    .dx_format = format,
                    .dweight = shape.dweight ? arrays.dweight.floats() : nullptr,
                    .dbias = shape.dbias ? arrays.dbias.floats() : nullptr};
  kernels::norm_backward(args);

  Memory memory;
  const auto copy = [&](const char* what, const Array& array, Format of) {
    return memory.add(what, array.data(), static_cast<size_t>(array.count() * format::bytes(of)), shape.offset);
  };
  const auto room = [&](const char* what, int64_t count, Format of) {
    return memory.add_unwritten(what, static_cast<size_t>(count * format::bytes(of)), shape.offset);
  };
  args.dy = pointer<void>(copy("dy", arrays.dy, format));
  args.x = pointer<void>(copy("x", arrays.x, format));
  args.weight = pointer<float>(copy("weight", arrays.weight, Format::kFp32));
  if (args.mean) args.mean = pointer<float>(copy("mean", arrays.mean, Format::kFp32));
  args.rstd = pointer<float>(copy("rstd", arrays.rstd, Format::kFp32));
  if (shape.residual) args.dresidual = pointer<void>(copy("dresidual", arrays.residual, format));
  args.dx = pointer<void>(room("dx", arrays.dx.count(), format));
  if (shape.dweight) args.dweight = pointer<float>(room("dweight", shape.cols, Format::kFp32));
  if (shape.dbias) args.dbias = pointer<float>(room("dbias", shape.cols, Format::kFp32));
  const uint64_t partials = room("partials", kernels::norm_partial_count(args), Format::kFp32);
  const kernels::NormBackwardSums sums = {args, pointer<float>(partials)};
  launch(module.kernel("norm_backward_" + name), memory, kernels::norm_backward_launch(args, kMultiprocessors), args);
  launch(module.kernel("norm_backward_partials_" + name), memory,
         kernels::norm_backward_partials_launch(sums, kMultiprocessors), sums);
  launch(module.kernel("norm_backward_sums"), memory, kernels::norm_backward_sums_launch(sums, kMultiprocessors), sums);

  const auto expect = [&](uint64_t got, const Array& wanted, Format of, const char* what) {
    expect_same({1, wanted.count(), wanted.count(), of}, memory.data(got), wanted.data(), /*exact=*/false,
                where + ": " + what);
  };
  expect(address(args.dx), arrays.dx, format, "dx");
  if (shape.dweight) expect(address(args.dweight), arrays.dweight, Format::kFp32, "dweight");
  if (shape.dbias) expect(address(args.dbias), arrays.dbias, Format::kFp32, "dbias");
}

TEST(PtxNormBackward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("norm_backward");
  for (const Format format : kWide) {
    for (const Case& shape : kCases) check(module, format, shape);
    if (HasFatalFailure()) return;
  }
}

TEST(PtxNormBackward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("norm_backward");
  check(module, Format::kBf16, {NormKind::kRmsNorm, 49, 2048, true, false, true, false});
  check(module, Format::kFp32, {NormKind::kLayerNorm, 100, 1000, true, true, true, true});
}

TEST(PtxNormBackward, AddsMoreGroupsOfRowsThanABlockTakesAtOnce) {
  PLIMSOLL_MODULE("norm_backward");
  check(module, Format::kFp32, {NormKind::kLayerNorm, 16500, 1, false, false, true, true});
}

TEST(PtxNormBackward, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("norm_backward");
  for (const float worst : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    check(module, Format::kFp32, {NormKind::kLayerNorm, 70, 100, true, false, true, true}, worst);
    check(module, Format::kBf16, {NormKind::kRmsNorm, 70, 100, false, false, true, true}, worst);
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::norm_backward_ptx_test
