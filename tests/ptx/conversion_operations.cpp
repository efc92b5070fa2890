#include <bit>
#include <cmath>
#include <limits>

#include "tests/ptx/narrow_formats.h"
#include "tests/ptx/operations.h"

namespace plimsoll::ptx {
namespace {

template <class To, class From, class F>
Step converting(const Instruction& i, F f) {
  return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), f](Thread& t) { set<To>(t, d, f(get<From>(t, a))); });
}

// cvt.rn.bf16x2.f32 d, a, b: a in the upper half.
template <class Code, class Pair>
Step packing(const Instruction& i, Code (*code)(float)) {
  return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), &b = i.operands.at(2), code](Thread& t) {
    set<Pair>(t, d, static_cast<Pair>(Pair{code(get<float>(t, a))} << (8 * sizeof(Code)) | code(get<float>(t, b))));
  });
}

Step unpacking(const Instruction& i, uint16_t (*half)(uint8_t)) {
  return converting<uint32_t, uint16_t>(i, [half](uint16_t codes) {
    return uint32_t{half(static_cast<uint8_t>(codes >> 8))} << 16 | half(static_cast<uint8_t>(codes));
  });
}

// Conversions of NaN, whose payload the language leaves open.
float narrow_of(double x) { return std::isnan(x) ? std::bit_cast<float>(0x7fffffffu) : static_cast<float>(x); }
double wide_of(float x) { return std::isnan(x) ? std::bit_cast<double>(~uint64_t{0} >> 1) : double{x}; }

std::optional<Step> narrow(const Instruction& i) {
  const std::string& text = i.text;
  if (text == "cvt.rn.f16.f32") return converting<uint16_t, float>(i, fp16_of);
  if (text == "cvt.rn.bf16.f32") return converting<uint16_t, float>(i, bf16_of);
  if (text == "cvt.f32.f16") return converting<float, uint16_t>(i, fp32_of_fp16);
  if (text == "cvt.f32.bf16") return converting<float, uint16_t>(i, fp32_of_bf16);
  if (text == "cvt.rn.f32.f64") return converting<float, double>(i, narrow_of);
  if (text == "cvt.f64.f32") return converting<double, float>(i, wide_of);
  if (text == "cvt.rn.f16x2.f32") return packing<uint16_t, uint32_t>(i, fp16_of);
  if (text == "cvt.rn.bf16x2.f32") return packing<uint16_t, uint32_t>(i, bf16_of);
  if (text == "cvt.rn.satfinite.e4m3x2.f32") return packing<uint8_t, uint16_t>(i, e4m3_of);
  if (text == "cvt.rn.satfinite.e5m2x2.f32") return packing<uint8_t, uint16_t>(i, e5m2_of);
  if (text == "cvt.rn.f16x2.e4m3x2") return unpacking(i, fp16_of_e4m3);
  if (text == "cvt.rn.f16x2.e5m2x2") return unpacking(i, fp16_of_e5m2);
  return std::nullopt;
}

// To the nearest integer of the type; NaN becomes 0.
template <class T>
T saturated(float x) {
  if (std::isnan(x)) return 0;
  const auto wide = static_cast<long double>(x);
  if (wide <= static_cast<long double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (wide >= static_cast<long double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(x);
}

std::optional<Step> integers(const Instruction& i, const std::string& to, const std::string& from) {
  return with_integer(to, [&]<class To>() {
    return with_integer(from, [&]<class From>() -> std::optional<Step> {
      return converting<To, From>(i, [](From x) { return static_cast<To>(x); });
    });
  });
}

}  // namespace

std::optional<Step> make_conversion(const Instruction& i) {
  if (i.words[0] != "cvt") return std::nullopt;
  if (auto step = narrow(i)) return step;
  if (i.words.size() == 3) return integers(i, i.words[1], i.words[2]);
  if (i.words.size() != 4) return std::nullopt;
  if (i.words[1] == "rn" && i.words[2] == "f32") {
    return with_integer(i.words[3], [&]<class From>() -> std::optional<Step> {
      return converting<float, From>(i, [](From x) { return static_cast<float>(x); });
    });
  }
  if (i.words[1] == "rn" && i.words[2] == "f64") {
    return with_integer(i.words[3], [&]<class From>() -> std::optional<Step> {
      return converting<double, From>(i, [](From x) { return static_cast<double>(x); });
    });
  }
  const bool is_truncation = i.words[1] == "rzi", is_nearest = i.words[1] == "rni";
  if (i.words[3] == "f32" && (is_truncation || is_nearest)) {
    return with_integer(i.words[2], [&]<class To>() -> std::optional<Step> {
      return converting<To, float>(
          i, [is_nearest](float x) { return saturated<To>(is_nearest ? std::nearbyint(x) : std::trunc(x)); });
    });
  }
  return std::nullopt;
}

}  // namespace plimsoll::ptx
