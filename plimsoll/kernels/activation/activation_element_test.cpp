// Functions of activation_element.h, which CUDA kernels use, against the kernels of CPUs on every 16-bit number.
#include "plimsoll/kernels/activation/activation_element.h"

#include "plimsoll/kernels/activation/activation_testing.h"

namespace plimsoll::kernels::testing::activation_element_test {
namespace {

constexpr int64_t kCodes = 65536;

// Every number of the format as x, plain, or as gates of the values 0.75, -3 and 9.
struct AllCodes {
  Case c;
  Inputs in;

  AllCodes(const ActivationInfo& row, Format format)
      : c{.kind = row.kind,
          .rows = 1,
          .cols = kCodes,
          .x_format = format,
          .dy_format = format,
          .out_format = Format::kFp32,
          .column_sum = false},
        in(c) {
    for (int64_t i = 0; i < kCodes; ++i) {
      in.x.set(i, format::decode(format, static_cast<uint32_t>(i)));
      if (row.gated) in.x.set(kCodes + i, i % 3 == 0 ? 0.75f : i % 3 == 1 ? -3.0f : 9.0f);
      in.dy.set(i, i % 2 == 0 ? 1.0f : -0.37f);
    }
  }
};

constexpr ExactDivision division;

void expect_value(const Array& got, int64_t i, float wanted, float x, std::string_view what) {
  ASSERT_TRUE(same(got.at(i), wanted)) << what << " at " << x << ": the kernel gives " << got.at(i)
                                       << ", the function of one element " << wanted;
}

TEST(ActivationElement, HasTheBitsOfTheKernelOnEvery16BitNumber) {
  for (const Format format : {Format::kBf16, Format::kFp16}) {
    for (const ActivationInfo& row : kActivations) {
      AllCodes all(row, format);
      const ActivationCurve curve = activation_curve(all.c.spec());
      const Forward y = forward(all.c, all.in);
      with_function(curve, [&](auto function) {
        for (int64_t i = 0; i < kCodes; ++i) {
          const float x = all.in.x.at(i), value = row.gated ? all.in.x.at(kCodes + i) : 0.0f;
          const float at = function(x, division);
          expect_value(y.y, i, row.gated ? at * gated_value_of(curve, value) : at, x, row.name);
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ActivationElement, HasTheGradientsOfTheKernelOnEvery16BitNumber) {
  for (const Format format : {Format::kBf16, Format::kFp16}) {
    for (const ActivationInfo& row : kActivations) {
      AllCodes all(row, format);
      const ActivationCurve curve = activation_curve(all.c.spec());
      const Backward wanted = backward(all.c, all.in);
      with_gradient(curve, [&](auto both) {
        for (int64_t i = 0; i < kCodes; ++i) {
          const float x = all.in.x.at(i), dy = all.in.dy.at(i);
          const ValueAndGradient at = both(x, division);
          if (!row.gated) {
            expect_value(wanted.dx, i, dy * at.gradient, x, row.name);
            continue;
          }
          const float value = all.in.x.at(kCodes + i);
          expect_value(wanted.dx, i, dy * gated_value_of(curve, value) * at.gradient, x, row.name);
          expect_value(wanted.dx, kCodes + i, gated_gradient_of(curve, value, dy * at.value), x, row.name);
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing::activation_element_test
