#include "plimsoll/shard/average/exact_sum_on_device.h"

#include <algorithm>
#include <cstdint>

#include "plimsoll/shard/average/exact_sum.h"

namespace plimsoll::shard {
namespace {

// Values at once, for which seven arrays of eight bytes a value are there: 56 MB.
constexpr int64_t kChunk = 1 << 20;

}  // namespace

void add_squares(const at::Tensor& words, const at::Tensor& values) {
  using Sum = ExactSumOfSquares;
  constexpr int64_t kImplicit = int64_t{1} << Sum::kMantissaBits;
  const at::Tensor flat = values.reshape({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kChunk) {
    const at::Tensor wide = flat.narrow(0, begin, std::min(kChunk, flat.numel() - begin)).to(at::kDouble);
    const at::Tensor bits = wide.mul(wide).view(at::kLong);
    const at::Tensor exponent = bits.bitwise_right_shift(Sum::kMantissaBits).bitwise_and(Sum::kExponents - 1);
    at::Tensor mantissa = bits.bitwise_and(kImplicit - 1).bitwise_or(kImplicit).bitwise_right_shift(Sum::kZeros);
    mantissa.mul_(exponent.ne(0));
    const at::Tensor place = exponent.mul(2);
    words.index_add_(0, place, mantissa.bitwise_right_shift(Sum::kHalf));
    words.index_add_(0, place.add(1), mantissa.bitwise_and((int64_t{1} << Sum::kHalf) - 1));
  }
}

}  // namespace plimsoll::shard
