// Kernels of norm.cu and softmax.cu against those of norm_cpu.cpp and softmax_cpu.cpp: the same codes of every number; any NaN counts
// as any other.
#include <limits>

#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/kernels/norm/norm_launch.h"
#include "plimsoll/kernels/softmax/softmax.h"
#include "plimsoll/kernels/softmax/softmax_launch.h"
#include "tests/ptx/array_testing.h"

namespace plimsoll::ptx::testing::rows_ptx_test {
namespace {

using kernels::NormForward;
using kernels::NormKind;
using kernels::testing::Array;
using kernels::testing::sample;

constexpr Format kWide[] = {Format::kFp32, Format::kBf16, Format::kFp16};

struct NormCase {
  NormKind kind;
  int64_t rows, cols;
  bool residual, bias, zero_centered;
};
// Widths around a run, a piece of 1,024 and what a team holds; rows around the teams of a block.
constexpr NormCase kNormCases[] = {
    {NormKind::kLayerNorm, 0, 8, false, true, false},    {NormKind::kLayerNorm, 1, 1, false, false, false},
    {NormKind::kRmsNorm, 3, 63, false, false, true},     {NormKind::kLayerNorm, 5, 65, true, true, true},
    {NormKind::kRmsNorm, 2, 1025, true, false, false},   {NormKind::kLayerNorm, 3, 1000, true, true, false},
    {NormKind::kLayerNorm, 1, 9001, false, true, false}, {NormKind::kRmsNorm, 2, 64, false, false, false},
    {NormKind::kRmsNorm, 18, 132, false, false, true},   {NormKind::kLayerNorm, 5, 1096, true, true, false},
    {NormKind::kLayerNorm, 3, 3000, false, true, false}, {NormKind::kRmsNorm, 1, 9216, false, false, false},
    {NormKind::kLayerNorm, 1, 16900, true, false, true}};

void check_norm(const Module& module, Format x_format, Format y_format, const NormCase& shape, float worst = 0) {
  const std::string name = "norm_forward_" + name_of(x_format) + "_" + name_of(y_format);
  const std::string where = name + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
  const int64_t count = shape.rows * shape.cols;
  std::vector<float> values = sample(count, 1, 0.5f);
  if (worst != 0) values[static_cast<size_t>(count / 2)] = worst;
  const Array x(x_format, values), residual(x_format, sample(count, 2)),
      weight(Format::kFp32, sample(shape.cols, 3, 1.0f, 0.2f)), bias(Format::kFp32, sample(shape.cols, 4));
  Array sum(x_format, count), y(y_format, count), mean(Format::kFp32, shape.rows), rstd(Format::kFp32, shape.rows);
  const float scale = 0.02f;
  float amax = 0;
  NormForward args{.kind = shape.kind,
                   .rows = shape.rows,
                   .cols = shape.cols,
                   .x = x.data(),
                   .residual = shape.residual ? residual.data() : nullptr,
                   .sum = shape.residual ? sum.data() : nullptr,
                   .x_format = x_format,
                   .weight = static_cast<const float*>(weight.data()),
                   .bias = shape.bias ? static_cast<const float*>(bias.data()) : nullptr,
                   .zero_centered = shape.zero_centered,
                   .y = y.data(),
                   .y_format = y_format,
                   .scale = &scale,
                   .amax = &amax,
                   .mean = mean.floats(),
                   .rstd = rstd.floats()};
  kernels::norm_forward(args);

  Memory memory;
  const float zero = 0;
  args.x = pointer<void>(add(memory, "x", x, x_format));
  if (shape.residual) {
    args.residual = pointer<void>(add(memory, "residual", residual, x_format));
    args.sum = pointer<void>(add_unwritten(memory, "sum", count, x_format));
  }
  args.weight = pointer<float>(add(memory, "weight", weight, Format::kFp32));
  if (shape.bias) args.bias = pointer<float>(add(memory, "bias", bias, Format::kFp32));
  args.y = pointer<void>(add_unwritten(memory, "y", count, y_format));
  args.scale = pointer<float>(memory.add("scale", &scale, sizeof(scale)));
  args.amax = pointer<float>(memory.add("amax", &zero, sizeof(zero), 0, /*read_only=*/false));
  args.mean = pointer<float>(add_unwritten(memory, "mean", shape.rows, Format::kFp32));
  args.rstd = pointer<float>(add_unwritten(memory, "rstd", shape.rows, Format::kFp32));
  launch(module.kernel(name), memory, kernels::norm_forward_launch(args, kMultiprocessors), args);

  const auto expect = [&](uint64_t got, const void* wanted, int64_t elements, Format format, const char* what) {
    expect_same({1, elements, elements, format}, memory.data(got), wanted, /*exact=*/false, where + ": " + what);
  };
  expect(address(args.y), y.data(), count, y_format, "y");
  if (shape.residual) expect(address(args.sum), sum.data(), count, x_format, "sum");
  expect(address(args.mean), mean.data(), shape.rows, Format::kFp32, "mean");
  expect(address(args.rstd), rstd.data(), shape.rows, Format::kFp32, "rstd");
  expect(address(args.amax), &amax, 1, Format::kFp32, "amax");
}

TEST(PtxNormForward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("norm");
  for (const Format x : kWide) {
    for (const Format y : {x, Format::kFp32, Format::kE4m3, Format::kE5m2}) {
      for (const NormCase& shape : kNormCases) check_norm(module, x, y, shape);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxNormForward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("norm");
  check_norm(module, Format::kBf16, Format::kE4m3, {NormKind::kRmsNorm, 49, 2048, true, false, false});
  check_norm(module, Format::kFp32, Format::kFp32, {NormKind::kLayerNorm, 100, 1000, false, true, false});
}

TEST(PtxNormForward, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("norm");
  for (const float worst : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e25f}) {
    for (const Format y : {Format::kFp32, Format::kE4m3, Format::kE5m2}) {
      check_norm(module, Format::kFp32, y, {NormKind::kLayerNorm, 5, 100, false, true, false}, worst);
      check_norm(module, Format::kFp32, y, {NormKind::kRmsNorm, 5, 100, false, false, false}, worst);
    }
  }
}

struct SoftmaxCase {
  kernels::SoftmaxShape shape;
  kernels::Causal causal;
  bool masked;
};
constexpr SoftmaxCase kSoftmaxCases[] = {
    {{0, 1, 3, 4}, kernels::Causal::kNone, false},          {{1, 1, 1, 1}, kernels::Causal::kNone, false},
    {{2, 1, 2, 63}, kernels::Causal::kNone, true},          {{1, 2, 3, 65}, kernels::Causal::kTopLeft, false},
    {{2, 2, 5, 3}, kernels::Causal::kBottomRight, false},   {{1, 2, 3, 1025}, kernels::Causal::kBottomRight, true},
    {{1, 1, 2, 2049}, kernels::Causal::kNone, true},        {{1, 1, 70, 300}, kernels::Causal::kBottomRight, false},
    {{1, 2, 3, 3000}, kernels::Causal::kBottomRight, true}, {{1, 1, 1, 16900}, kernels::Causal::kNone, false}};

void check_softmax(const Module& module, Format format, const SoftmaxCase& one, float worst = 0) {
  const auto [batch, heads, queries, keys] = one.shape;
  const std::string name = "softmax_forward_" + name_of(format);
  const std::string where = name + " " + std::to_string(queries) + " x " + std::to_string(keys);
  const int64_t count = batch * heads * queries * keys;
  std::vector<float> values = sample(count, 5, 0.0f, 4.0f);
  if (worst != 0) values[static_cast<size_t>(count / 2)] = worst;
  const Array x(format, values);
  // A mask for each query, the same for all heads; the first row is masked whole.
  std::vector<uint8_t> mask(static_cast<size_t>(batch * queries * keys));
  for (size_t i = 0; i < mask.size(); ++i)
    mask[i] = static_cast<uint8_t>(static_cast<int64_t>(i) < keys || i % 3 == 0 ? 200 : 0);
  Array y(format, count);
  kernels::SoftmaxForward args{.shape = one.shape,
                               .x = x.data(),
                               .y = y.data(),
                               .format = format,
                               .scale = 0.7f,
                               .causal = one.causal,
                               .mask = one.masked ? mask.data() : nullptr,
                               .mask_batch_stride = queries * keys,
                               .mask_query_stride = keys};
  kernels::softmax_forward(args);
  Memory memory;
  args.x = pointer<void>(add(memory, "x", x, format));
  args.y = pointer<void>(add_unwritten(memory, "y", count, format));
  if (one.masked) args.mask = pointer<uint8_t>(memory.add("mask", mask.data(), mask.size()));
  launch(module.kernel(name), memory, kernels::softmax_forward_launch(args, kMultiprocessors), args);
  expect_same({1, count, count, format}, memory.data(address(args.y)), y.data(), /*exact=*/false, where);
}

TEST(PtxSoftmaxForward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("softmax");
  for (const Format format : kWide) {
    for (const SoftmaxCase& one : kSoftmaxCases) check_softmax(module, format, one);
    if (HasFatalFailure()) return;
  }
}

TEST(PtxSoftmaxForward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("softmax");
  check_softmax(module, Format::kBf16, {{1, 2, 25, 2000}, kernels::Causal::kBottomRight, true});
}

TEST(PtxSoftmaxForward, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("softmax");
  for (const float worst : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    check_softmax(module, Format::kFp32, {{1, 1, 5, 100}, kernels::Causal::kNone, false}, worst);
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::rows_ptx_test
