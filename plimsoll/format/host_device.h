// Functions that hosts and CUDA devices share: PLIMSOLL_HD marks them, and means nothing to other compilers than nvcc.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define PLIMSOLL_HD __host__ __device__
#else
#define PLIMSOLL_HD
#endif

namespace plimsoll::format {

// std::bit_cast, which nvcc lets hosts alone call.
template <class To, class From>
PLIMSOLL_HD constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

// x > 0.
PLIMSOLL_HD constexpr int leading_zeros(uint32_t x) {
#ifdef __CUDA_ARCH__
  return __clz(static_cast<int>(x));
#else
  return std::countl_zero(x);
#endif
}

}  // namespace plimsoll::format
