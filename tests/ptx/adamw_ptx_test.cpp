// Kernels of adamw.cu against those of adamw_cpu.cpp: the same bits of every number; any NaN counts as any other.
#include <limits>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/adamw_launch.h"
#include "plimsoll/kernels/testing.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing::adamw_ptx_test {
namespace {

using kernels::AdamW;
using kernels::testing::Array;
using kernels::testing::sample;

struct Case {
  int64_t count;
  size_t offset;  // bytes of the arrays from an aligned address
  Format grad;
  bool narrow;
  Format narrow_format;
  double l2;
};
constexpr Case kCases[] = {
    {1, 0, Format::kFp32, false, Format::kBf16, 0},     {7, 4, Format::kBf16, true, Format::kBf16, 0.1},
    {8, 0, Format::kFp16, true, Format::kFp16, 0},      {1025, 0, Format::kBf16, true, Format::kFp16, 0},
    {4099, 8, Format::kFp32, true, Format::kBf16, 0.1}, {5000, 0, Format::kFp16, false, Format::kBf16, 0}};

void check(const Module& module, const Case& one, float worst = 0) {
  const std::string name = "adamw_" + std::string(format::info(one.grad).name);
  const std::string where = name + " " + std::to_string(one.count);
  std::vector<float> gradients = sample(one.count, 1);
  if (worst != 0) gradients[0] = worst;
  const Array grad(one.grad, gradients);
  std::vector<float> second = sample(one.count, 2);
  for (float& x : second) x = x * x;
  Array weight(Format::kFp32, sample(one.count, 3)), moment1(Format::kFp32, sample(one.count, 4)),
      moment2(Format::kFp32, second), narrow(one.narrow_format, one.count);
  Memory memory;
  const auto add = [&](const char* what, const void* data, Format format, bool read_only) {
    return memory.add(what, data, static_cast<size_t>(one.count * format::bytes(format)), one.offset, read_only);
  };
  AdamW device{.master = pointer<float>(add("weight", weight.data(), Format::kFp32, false)),
               .narrow_format = one.narrow_format,
               .grad = pointer<void>(add("grad", grad.data(), one.grad, true)),
               .grad_format = one.grad,
               .moment1 = pointer<void>(add("moment1", moment1.data(), Format::kFp32, false)),
               .moment2 = pointer<void>(add("moment2", moment2.data(), Format::kFp32, false)),
               .count = one.count,
               .l2 = one.l2,
               .step = 3,
               .grad_scale = 0.5f};
  if (one.narrow)
    device.narrow = pointer<void>(memory.add_unwritten("narrow", static_cast<size_t>(2 * one.count), one.offset));
  const float zero = 0;
  const uint64_t amax = memory.add("amax", &zero, sizeof(zero), 0, /*read_only=*/false);
  launch(module.kernel(name), memory, kernels::adamw_launch(device, kMultiprocessors), device,
         kernels::adamw_coefficients(device), amax);

  AdamW host = device;
  host.master = weight.floats();
  host.grad = grad.data();
  host.moment1 = moment1.data();
  host.moment2 = moment2.data();
  host.narrow = one.narrow ? narrow.data() : nullptr;
  const float expected = kernels::adamw(host);
  const auto expect = [&](const void* got, const void* wanted, int64_t count, Format format, const char* what) {
    expect_same({1, count, count, format}, memory.data(reinterpret_cast<uint64_t>(got)), wanted, /*exact=*/false,
                where + ": " + what);
  };
  expect(device.master, weight.data(), one.count, Format::kFp32, "weight");
  expect(device.moment1, moment1.data(), one.count, Format::kFp32, "moment1");
  expect(device.moment2, moment2.data(), one.count, Format::kFp32, "moment2");
  if (one.narrow) expect(device.narrow, narrow.data(), one.count, one.narrow_format, "narrow");
  expect(pointer<void>(amax), &expected, 1, Format::kFp32, "amax");
}

TEST(PtxAdamW, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("adamw");
  for (const Case& one : kCases) check(module, one);
}

TEST(PtxAdamW, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("adamw");
  check(module, {100000, 0, Format::kBf16, true, Format::kBf16, 0});
}

TEST(PtxAdamW, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("adamw");
  for (const float worst : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    check(module, {100, 0, Format::kFp32, true, Format::kBf16, 0}, worst);
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::adamw_ptx_test
