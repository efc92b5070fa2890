// Runs of neighbouring elements that are all there and aligned, between memory and FP32 values without a branch for each element. A NaN
// becomes any NaN, and an FP8 code has a meaning only of a finite value; elements.cuh has every other case.
#pragma once

#include <type_traits>

#include "plimsoll/kernels/cuda/elements.cuh"

namespace plimsoll::kernels {

template <Format kFormat, int kRun>
struct PackedRun {
  static constexpr int kBytes = kRun * sizeof(Element<kFormat>);
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  using Vector = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, uint32_t>>;
  Words<kBytes> raw;

  __device__ static PackedRun at(const Element<kFormat>* p) {
    return {format::bit_cast<Words<kBytes>>(*reinterpret_cast<const Vector*>(p))};
  }
  // One instruction in any case: nvcc makes four of an assignment whose words it has apart.
  __device__ void store(Element<kFormat>* p) const {
    const uint64_t to = __cvta_generic_to_global(p);
    const auto& w = raw.words;
    if constexpr (kBytes == 16) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                   : "memory");
    } else if constexpr (kBytes == 8) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
    } else {
      asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(w[0]) : "memory");
    }
  }

  __device__ void decode(float (&x)[kRun]) const {
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      if constexpr (kFormat == Format::kFp32) {
        x[i] = __uint_as_float(raw.words[i]);
        x[i + 1] = __uint_as_float(raw.words[i + 1]);
      } else if constexpr (kFormat == Format::kBf16) {
        x[i] = __uint_as_float(raw.words[i / 2] << 16);
        x[i + 1] = __uint_as_float(raw.words[i / 2] & 0xffff0000u);
      } else if constexpr (kFormat == Format::kFp16) {
        const TwoValues two = decode_two_fp16(raw.words[i / 2]);
        x[i] = two.first;
        x[i + 1] = two.second;
      } else {
        const TwoValues two = decode_two_fp8<Codec<kFormat>>(static_cast<uint16_t>(raw.words[i / 4] >> (8 * (i % 4))));
        x[i] = two.first;
        x[i + 1] = two.second;
      }
    }
  }

  // Each rounded once.
  __device__ static PackedRun of(const float (&x)[kRun]) {
    PackedRun run = {};
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      if constexpr (kFormat == Format::kFp32) {
        run.raw.words[i] = __float_as_uint(x[i]);
        run.raw.words[i + 1] = __float_as_uint(x[i + 1]);
      } else if constexpr (format::is_fp8(kFormat)) {
        run.raw.words[i / 4] |= encode_two_finite<Codec<kFormat>>(x[i], x[i + 1]) << (8 * (i % 4));
      } else {
        run.raw.words[i / 2] = encode_two_finite<Codec<kFormat>>(x[i], x[i + 1]);
      }
    }
    return run;
  }

 private:
  __device__ static TwoValues decode_two_fp16(uint32_t codes) {
    TwoValues two;
    asm("cvt.f32.f16 %0, %1;" : "=f"(two.first) : "h"(static_cast<uint16_t>(codes)));
    asm("cvt.f32.f16 %0, %1;" : "=f"(two.second) : "h"(static_cast<uint16_t>(codes >> 16)));
    return two;
  }
};

}  // namespace plimsoll::kernels
