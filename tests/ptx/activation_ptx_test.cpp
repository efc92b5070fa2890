// Kernels of activation.cu against those of activation_cpu.cpp: the same codes of every number; any NaN counts as any other.
#include <limits>

#include "plimsoll/kernels/activation/activation_launch.h"
#include "plimsoll/kernels/activation/activation_testing.h"
#include "tests/ptx/array_testing.h"

namespace plimsoll::ptx::testing::activation_ptx_test {
namespace {

using kernels::Activation;
using kernels::ActivationBackward;
using kernels::ActivationForward;
using kernels::ActivationInfo;
using kernels::kActivations;
using kernels::testing::Array;
using kernels::testing::Case;
using kernels::testing::describe;
using kernels::testing::Inputs;

constexpr Format kWide[] = {Format::kFp32, Format::kBf16, Format::kFp16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Arguments where a curve or its gradient changes its course.
constexpr float kEdges[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                            3e38f,     -3e38f,     1e19f,
                            -1e19f,    88.5f,      -88.5f,
                            7.0f,      -7.0f,      16.0f,
                            -16.0f,    0x1p-140f,  -0.0f};

// Names of the formats of x and of the output, as in a kernel's.
std::string formats_of(const Case& c) { return name_of(c.x_format) + "_" + name_of(c.out_format); }

// Arrays of a case on the device, each as many bytes from an aligned address.
struct Device {
  Memory memory;
  size_t offset = 0;
  uint64_t amax = 0, scale = 0;

  Device(const Case& c, size_t bytes) : offset(bytes) {
    const float zero = 0;
    amax = memory.add("amax", &zero, sizeof(zero), 0, /*read_only=*/false);
    scale = memory.add("scale", &c.scale, sizeof(c.scale));
  }
  uint64_t copy(const char* name, const Array& array, Format format) {
    return memory.add(name, array.data(), static_cast<size_t>(array.count() * format::bytes(format)), offset);
  }
  uint64_t room(const char* name, int64_t count, Format format) {
    return memory.add_unwritten(name, static_cast<size_t>(count * format::bytes(format)), offset);
  }
  void expect(uint64_t got, const void* wanted, int64_t count, Format format, const std::string& where) {
    expect_same({1, count, count, format}, memory.data(got), wanted, /*exact=*/false, where);
  }
};

Inputs inputs_of(const Case& c, bool edges) {
  Inputs in(c);
  if (!edges) return in;
  for (int64_t i = 0; i < in.x.count(); ++i)
    in.x.set(i, kEdges[static_cast<size_t>(i * 7 + i / 15) % std::size(kEdges)]);
  return in;
}

void check_forward(const Module& module, const Case& c, size_t offset = 0, bool edges = false) {
  Inputs in = inputs_of(c, edges);
  const auto wanted = kernels::testing::forward(c, in);
  Device device(c, offset);
  ActivationForward args{.activation = c.spec(), .rows = c.rows, .cols = c.cols, .x_format = c.x_format};
  args.x = pointer<void>(device.copy("x", in.x, c.x_format));
  args.y = pointer<void>(device.room("y", c.rows * c.cols, c.out_format));
  args.y_format = c.out_format;
  args.scale = pointer<float>(device.scale);
  args.amax = pointer<float>(device.amax);
  launch(module.kernel("activation_forward_" + formats_of(c)), device.memory,
         kernels::activation_forward_launch(args, kMultiprocessors), args, kernels::activation_curve(args.activation));
  device.expect(address(args.y), wanted.y.data(), c.rows * c.cols, c.out_format, describe(c) + ": y");
  device.expect(device.amax, &wanted.amax, 1, Format::kFp32, describe(c) + ": amax");
}

void check_backward(const Module& module, const Case& c, size_t offset = 0, bool edges = false) {
  Inputs in = inputs_of(c, edges);
  const auto wanted = kernels::testing::backward(c, in);
  Device device(c, offset);
  ActivationBackward args{.activation = c.spec(), .rows = c.rows, .cols = c.cols, .x_format = c.x_format};
  args.x = pointer<void>(device.copy("x", in.x, c.x_format));
  args.dy = pointer<void>(device.copy("dy", in.dy, c.dy_format));
  args.dy_format = c.dy_format;
  args.dx = pointer<void>(device.room("dx", wanted.dx.count(), c.out_format));
  args.dx_format = c.out_format;
  args.scale = pointer<float>(device.scale);
  args.amax = pointer<float>(device.amax);
  if (c.column_sum) args.column_sum = pointer<float>(device.room("column_sum", c.x_cols(), Format::kFp32));
  const auto curve = kernels::activation_curve(args.activation);
  const uint64_t partials = device.room("partials", kernels::activation_partial_count(args), Format::kFp32);
  launch(module.kernel("activation_backward_" + formats_of(c)), device.memory,
         kernels::activation_backward_launch(args, kMultiprocessors), args, curve, partials);
  launch(module.kernel("activation_backward_sums"), device.memory,
         kernels::activation_backward_sums_launch(args, kMultiprocessors), args, curve, partials);
  device.expect(address(args.dx), wanted.dx.data(), wanted.dx.count(), c.out_format, describe(c) + ": dx");
  device.expect(device.amax, &wanted.amax, 1, Format::kFp32, describe(c) + ": amax of dx");
  if (c.column_sum) {
    device.expect(address(args.column_sum), wanted.column_sum.data(), c.x_cols(), Format::kFp32,
                  describe(c) + ": column sum");
  }
}

struct Shape {
  int64_t rows, cols;
  size_t offset = 0;
};
// Widths around a thread's run and a block's tile, aligned and not.
constexpr Shape kShapes[] = {{0, 5}, {3, 0}, {1, 1}, {3, 7}, {2, 9}, {4, 8, 4}, {2, 1025}, {1, 2047}, {3, 2056}};

TEST(PtxActivationForward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("activation");
  for (const Format x : kWide) {
    for (const Format y : {x, Format::kFp32, Format::kE4m3, Format::kE5m2}) {
      for (const ActivationInfo& activation : kActivations) {
        check_forward(module, {.kind = activation.kind, .x_format = x, .out_format = y, .scale = 0.02f});
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxActivationForward, HasTheBytesOfTheCpuKernelInEachShape) {
  PLIMSOLL_MODULE("activation");
  for (const auto& [rows, cols, offset] : kShapes) {
    for (const Activation kind : {Activation::kSilu, Activation::kSwiglu}) {
      check_forward(module, {.kind = kind, .rows = rows, .cols = cols}, offset);
      check_forward(module, {kind, rows, cols, Format::kBf16, Format::kBf16, Format::kE4m3}, offset);
    }
  }
}

TEST(PtxActivationForward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("activation");
  check_forward(module, {Activation::kGelu, 49, 2040, Format::kFp32, Format::kFp32, Format::kFp32});
  check_forward(module, {Activation::kSwiglu, 24, 2050, Format::kBf16, Format::kBf16, Format::kE4m3});
}

TEST(PtxActivationForward, HasTheBytesOfTheCpuKernelAtEdges) {
  PLIMSOLL_MODULE("activation");
  for (const ActivationInfo& activation : kActivations) {
    check_forward(module, {.kind = activation.kind, .rows = 4, .cols = 60}, 0, /*edges=*/true);
  }
  check_forward(module, {.kind = Activation::kClampedSwiglu, .parameters = {{1.5f, -2.0f, kInfinity}}}, 0, true);
  // No zero times Inf but in what the last thread's run lacks.
  check_forward(module,
                {.kind = Activation::kClampedSwiglu, .rows = 1, .cols = 7, .parameters = {{7.0f, 1.0f, kInfinity}}});
}

TEST(PtxActivationBackward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("activation");
  for (const Format x : kWide) {
    for (const Format dx : {x, Format::kE4m3, Format::kE5m2}) {
      for (const ActivationInfo& activation : kActivations) {
        for (const bool column_sum : {false, true}) {
          check_backward(module, {.kind = activation.kind,
                                  .x_format = x,
                                  .dy_format = x,
                                  .out_format = dx,
                                  .scale = 0.02f,
                                  .column_sum = column_sum});
        }
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxActivationBackward, HasTheBytesOfTheCpuKernelInEachShape) {
  PLIMSOLL_MODULE("activation");
  for (const auto& [rows, cols, offset] : kShapes) {
    for (const Activation kind : {Activation::kSilu, Activation::kSwiglu}) {
      for (const bool column_sum : {false, true}) {
        check_backward(module, {.kind = kind, .rows = rows, .cols = cols, .column_sum = column_sum}, offset);
        check_backward(module, {kind, rows, cols, Format::kBf16, Format::kBf16, Format::kE4m3, 1.0f, column_sum},
                       offset);
      }
    }
  }
}

TEST(PtxActivationBackward, AddsColumnsInTheOrderOfTheCpuKernel) {
  PLIMSOLL_MODULE("activation");
  check_backward(module, {.kind = Activation::kRelu, .rows = 6200, .cols = 10});
  check_backward(module, {.kind = Activation::kReglu, .rows = 130, .cols = 37});
}

TEST(PtxActivationBackward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("activation");
  check_backward(module, {Activation::kGelu, 49, 2040, Format::kFp32, Format::kFp32, Format::kFp32, 1.0f, false});
  check_backward(module, {Activation::kSwiglu, 70, 700, Format::kBf16, Format::kBf16, Format::kE4m3, 0.01f, true});
}

TEST(PtxActivationBackward, HasTheBytesOfTheCpuKernelAtEdges) {
  PLIMSOLL_MODULE("activation");
  for (const ActivationInfo& activation : kActivations) {
    check_backward(module, {.kind = activation.kind, .rows = 4, .cols = 60}, 0, /*edges=*/true);
  }
  check_backward(module, {.kind = Activation::kClampedSwiglu, .parameters = {{1.5f, -2.0f, kInfinity}}}, 0, true);
  // No zero times Inf but in what the last thread's run lacks.
  check_backward(module,
                 {.kind = Activation::kClampedSwiglu, .rows = 1, .cols = 7, .parameters = {{7.0f, 1.0f, kInfinity}}});
}

}  // namespace
}  // namespace plimsoll::ptx::testing::activation_ptx_test
