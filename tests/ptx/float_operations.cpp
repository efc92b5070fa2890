// FP32 as a card computes it: every operation rounds once, to nearest even, and a NaN that it makes is 0x7fffffff. min, max, abs
// and neg, of which the language leaves NaN's payload open, make that one, too. FP64 is the same with 0x7fffffffffffffff.
#include <bit>
#include <cmath>

#include "tests/ptx/operations.h"

namespace plimsoll::ptx {
namespace {

float one_nan(float x) { return std::isnan(x) ? std::bit_cast<float>(0x7fffffffu) : x; }

double one_nan(double x) { return std::isnan(x) ? std::bit_cast<double>(0x7fffffffffffffffu) : x; }

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// Below -0 stands nothing: -0 < +0.
float smaller(float a, float b) {
  if (std::isnan(a)) return one_nan(b);
  if (std::isnan(b) || a < b) return a;
  if (b < a) return b;
  return std::signbit(a) ? a : b;
}

std::optional<Step> make_double(const Instruction& i) {
  const std::string& text = i.text;
  if (text == "add.f64" || text == "add.rn.f64")
    return binary<double>(i, [](double a, double b) { return one_nan(a + b); });
  if (text == "fma.rn.f64") {
    return ternary<double>(i, [](double a, double b, double c) { return one_nan(std::fma(a, b, c)); });
  }
  if (text == "mul.rn.f64") return binary<double>(i, [](double a, double b) { return one_nan(a * b); });
  if (text == "div.rn.f64") return binary<double>(i, [](double a, double b) { return one_nan(a / b); });
  return std::nullopt;
}

}  // namespace

std::optional<Step> make_float(const Instruction& i) {
  const std::string& name = i.words[0];
  const std::string& text = i.text;
  if (i.last() == "f64") return make_double(i);
  if (i.last() != "f32" || name == "ld" || name == "st" || name == "mov") return std::nullopt;
  if (text == "add.f32" || text == "add.rn.f32")
    return binary<float>(i, [](float a, float b) { return one_nan(a + b); });
  if (text == "sub.f32" || text == "sub.rn.f32")
    return binary<float>(i, [](float a, float b) { return one_nan(a - b); });
  if (text == "mul.f32" || text == "mul.rn.f32")
    return binary<float>(i, [](float a, float b) { return one_nan(a * b); });
  if (text == "div.rn.f32") return binary<float>(i, [](float a, float b) { return one_nan(a / b); });
  if (text == "rcp.rn.f32") return unary<float>(i, [](float a) { return one_nan(1.0f / a); });
  if (text == "sqrt.rn.f32") return unary<float>(i, [](float a) { return one_nan(std::sqrt(a)); });
  if (text == "fma.rn.f32") {
    return ternary<float>(i, [](float a, float b, float c) { return one_nan(std::fma(a, b, c)); });
  }
  // A card's may be an ulp off, with the same quotients (activation_division.cuh).
  if (text == "rcp.approx.ftz.f32") return unary<float>(i, [](float a) { return flushed(one_nan(1.0f / flushed(a))); });
  if (text == "max.NaN.f32") {
    return binary<float>(
        i, [](float a, float b) { return std::isnan(a) || std::isnan(b) ? one_nan(a + b) : -smaller(-a, -b); });
  }
  if (text == "min.f32") return binary<float>(i, smaller);
  if (text == "max.f32") return binary<float>(i, [](float a, float b) { return one_nan(-smaller(-a, -b)); });
  if (text == "abs.f32") return unary<float>(i, [](float a) { return one_nan(std::fabs(a)); });
  if (text == "neg.f32") return unary<float>(i, [](float a) { return one_nan(-a); });
  return std::nullopt;
}

}  // namespace plimsoll::ptx
