#include "plimsoll/autoscale/stochastic.h"

#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/where.h>

namespace plimsoll::autoscale {

at::Tensor round_stochastically(const at::Tensor& x, at::ScalarType dtype) {
  const int cut = 23 - (dtype == at::kHalf ? 10 : 7);  // bits of the mantissa that dtype has no room for
  const at::Tensor floats = x.contiguous();
  // Added below the last bit that stays, a random number carries into it as often as what is cut off says.
  const at::Tensor bits = floats.view(at::kInt);
  const at::Tensor carried = bits.add(at::randint_like(bits, int64_t{1} << cut)).bitwise_and_(-(int64_t{1} << cut));
  return at::where(at::isfinite(floats), carried.view(at::kFloat), floats).to(dtype);
}

}  // namespace plimsoll::autoscale
