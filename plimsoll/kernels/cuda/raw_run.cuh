// Runs of neighbouring elements as they lie in memory. A thread that holds many until their scale is known needs a register for
// every four bytes; decoded, 16-bit elements would take twice as many.
#pragma once

#include "plimsoll/kernels/cuda/amax.cuh"
#include "plimsoll/kernels/cuda/elements.cuh"

namespace plimsoll::kernels {

// Elements of a run of kCount that are there, where `left` remain of the row.
template <int kCount>
__device__ inline int in_reach(int64_t left) {
  return static_cast<int>(left < 0 ? 0 : left < kCount ? left : kCount);
}

// The first `count` of the elements that kBytes have; the others are 0. whole: all are there, and aligned. T: uint8_t, uint16_t,
// uint32_t.
template <int kBytes, class T>
__device__ inline Words<kBytes> load_words(const T* p, int count, bool whole) {
  if (whole) return *reinterpret_cast<const Words<kBytes>*>(p);
  constexpr int kElements = kBytes / sizeof(T), kPerWord = 4 / sizeof(T);
  Words<kBytes> result = {};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count) result.words[i / kPerWord] |= uint32_t{p[i]} << (8 * sizeof(T) * (i % kPerWord));
  }
  return result;
}

template <int kBytes, class T>
__device__ inline void store_words(T* p, int count, bool whole, const Words<kBytes>& x) {
  constexpr int kElements = kBytes / sizeof(T), kPerWord = 4 / sizeof(T);
  if (whole) {
    *reinterpret_cast<Words<kBytes>*>(p) = x;
    return;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count) p[i] = static_cast<T>(x.words[i / kPerWord] >> (8 * sizeof(T) * (i % kPerWord)));
  }
}

// 16 bytes of FP32, BF16 or FP16.
template <Format kFormat>
struct RawRun {
  static constexpr int kCount = 16 / sizeof(Element<kFormat>);
  Words<16> raw;

  // The first `count` of kCount elements; the others are 0.
  __device__ static RawRun at(const Element<kFormat>* p, int count, bool aligned) {
    const bool whole = aligned && count == kCount;
    if constexpr (kFormat == Format::kFp32) {
      return {load_words<16>(reinterpret_cast<const uint32_t*>(p), count, whole)};
    } else {
      return {load_words<16>(p, count, whole)};
    }
  }

  __device__ float operator[](int i) const {
    if constexpr (kFormat == Format::kFp16) {
      return decode_fp16(static_cast<uint16_t>(raw.words[i / 2] >> (16 * (i % 2))));
    } else {
      return __uint_as_float(leading(i));
    }
  }

  // The code of element i without its sign, in the leading bits: NaN > Inf > finite, as in amax.cuh.
  __device__ int32_t magnitude_code(int i) const { return static_cast<int32_t>(leading(i) & 0x7fffffff); }

  // The FP32 bits of the largest magnitude from the largest of those codes.
  __device__ static int32_t magnitude_of(int32_t code) {
    return kFormat == Format::kFp16 ? magnitude(decode_fp16(static_cast<uint16_t>(code >> 16))) : code;
  }

 private:
  __device__ uint32_t leading(int i) const {
    if constexpr (kFormat == Format::kFp32) return raw.words[i];
    return i % 2 == 0 ? raw.words[i / 2] << 16 : raw.words[i / 2] & 0xffff0000;
  }
};

}  // namespace plimsoll::kernels
