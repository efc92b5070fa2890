// The scale of a tensor, and what operators make of scales: arithmetic on the host, without torch.
//
//   value = data * 2^exponent
//
// Beside the exponent travel two things that are known of the data without looking: the rms that is expected of them,
// and a bound that none exceeds. An exponent is rounded; the remainder keeps what rounding left, so that repeated
// additions and products do not drift.
#pragma once

#include <cstdint>

namespace plimsoll::autoscale {

struct Scale {
  int32_t exponent = 0;
  double remainder = 0;  // log2 of the rms expected of data
  double bound = 0;      // log2 of what no finite |data| exceeds; kUnbounded: nothing is known

  bool is_zero() const;  // no shift applies to the data: zeros, Inf, NaN, or masks
  bool is_mask() const { return is_zero() && bound > 0; }
  double rms() const { return exponent + remainder; }  // log2, of the value
  double largest() const { return exponent + bound; }  // log2, of the value
};

inline constexpr double kUnbounded = 1e9;
// Exponent at which exponents saturate. FP32, in which a tensor must have its value in the end, has overflowed or
// vanished long before.
inline constexpr int32_t kLargestExponent = 1 << 16;
// Largest remainder before an operator without a multiplier of its own pays for one: rms within [1/4, 4].
inline constexpr double kSlack = 2;

// The scale under which data of this rms and amax, as measured, would have an rms near 1 and no element above
// 2^kHeadroom. Zero: an exact zero, whose exponent is below every other.
Scale scale_of(double rms, double amax);
Scale zero_scale();
// From here on a finite number is a mask, such as FP32's lowest, which attention masks hold instead of -Inf. Its data
// are 2^kMaskData, or -2^kMaskData, under whatever exponent of at least 0 the rest has.
inline constexpr double kMaskValue = 0x1p120;
inline constexpr double kMaskData = 14;
Scale mask_scale();
// The scale of a constant.
Scale scale_of_number(double number);
// Data have the largest element 2^kHeadroom at most, under a scale that was measured.
inline constexpr double kHeadroom = 15;

// The same value with another exponent: data are to be multiplied by shift(from, exponent).
Scale with_exponent(const Scale& scale, int32_t exponent);
double shift(const Scale& from, int32_t exponent);  // 2^(from.exponent - exponent)
// The shift to the exponent of `to`; 0 where `from` is an exact zero, whose data need none.
int32_t shift_to(const Scale& from, const Scale& to);

// Moves the exponent so that the remainder is in [-1/2, 1/2).
Scale settled(const Scale& scale);
// The same, but only where |remainder| >= kSlack.
Scale settled_if_due(const Scale& scale);

// Scales of elementwise results: values of independent elements.
Scale product(const Scale& a, const Scale& b);
// degree: -1, 1/2, 2 ...; exponent * degree has to be whole.
Scale power(const Scale& scale, double degree);
// Both operands at the larger exponent.
Scale sum(const Scale& a, const Scale& b);
// Sums of `terms` elements, and their mean.
Scale sum_over(const Scale& scale, int64_t terms);
Scale mean_over(const Scale& scale, int64_t terms);

}  // namespace plimsoll::autoscale
