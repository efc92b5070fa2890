// Runs of neighbouring elements between memory and a thread's registers: in words of up to 16 bytes where addresses allow
// it, else one by one.
#pragma once

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/cuda/convert.cuh"

namespace plimsoll::kernels {

template <Format kFormat>
struct ElementOf {
  using Type = uint16_t;
};
template <>
struct ElementOf<Format::kFp32> {
  using Type = float;
};
template <>
struct ElementOf<Format::kE4m3> {
  using Type = uint8_t;
};
template <>
struct ElementOf<Format::kE5m2> {
  using Type = uint8_t;
};
template <Format kFormat>
using Element = typename ElementOf<kFormat>::Type;

// The codec of a format narrower than FP32.
template <Format kFormat>
struct CodecOf;
template <>
struct CodecOf<Format::kFp16> {
  using Type = format::Fp16;
};
template <>
struct CodecOf<Format::kBf16> {
  using Type = format::Bf16;
};
template <>
struct CodecOf<Format::kE4m3> {
  using Type = format::E4m3;
};
template <>
struct CodecOf<Format::kE5m2> {
  using Type = format::E5m2;
};
template <Format kFormat>
using Codec = typename CodecOf<kFormat>::Type;

template <int kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) Words {
  uint32_t words[kBytes / 4];
};
template <>
struct Words<2> {
  uint16_t words[1];
};

// True if every row of a matrix whose rows are `stride` elements apart begins at a multiple of the bytes that a run has, or of
// 16 if it has more.
template <class T>
__device__ inline bool is_aligned(const T* p, int64_t stride, int run) {
  const uint64_t bytes = run * sizeof(T) < 16 ? run * sizeof(T) : 16;
  return ((reinterpret_cast<uint64_t>(p) | static_cast<uint64_t>(stride) * sizeof(T)) & (bytes - 1)) == 0;
}

template <Format kFormat>
__device__ inline float decode_element(Element<kFormat> x) {
  if constexpr (kFormat == Format::kFp32) {
    return x;
  } else if constexpr (kFormat == Format::kFp16) {
    return decode_fp16(x);
  } else {
    return format::Bf16::decode(x);
  }
}

template <Format kFormat>
__device__ inline float load(const void* p, int64_t i) {
  return decode_element<kFormat>(static_cast<const Element<kFormat>*>(p)[i]);
}

// The first `count` of kRun elements; the others are 0. whole: all are there, and aligned. A NaN of FP8 is any NaN.
template <Format kFormat, int kRun>
__device__ inline void load_run(const Element<kFormat>* p, int64_t count, bool whole, float (&x)[kRun]) {
  using T = Element<kFormat>;
  alignas(16) T elements[kRun];
  if (whole) {
    *reinterpret_cast<Words<kRun * sizeof(T)>*>(elements) = *reinterpret_cast<const Words<kRun * sizeof(T)>*>(p);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) elements[i] = i < count ? p[i] : T{};
  }
  if constexpr (format::is_fp8(kFormat)) {
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      const uint32_t codes = elements[i] | uint32_t{elements[i + 1]} << 8;
      const TwoValues values = decode_two_fp8<Codec<kFormat>>(static_cast<uint16_t>(codes));
      x[i] = values.first;
      x[i + 1] = values.second;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = decode_element<kFormat>(elements[i]);
  }
}

// The first `count` of kRun values as codes, each rounded once.
template <Format kFormat, int kRun>
__device__ inline void store_run(Element<kFormat>* p, int64_t count, bool whole, const float (&x)[kRun]) {
  using T = Element<kFormat>;
  alignas(16) T elements[kRun];
#pragma unroll
  for (int i = 0; i < kRun; i += 2) {
    if constexpr (kFormat == Format::kFp32) {
      elements[i] = x[i];
      elements[i + 1] = x[i + 1];
    } else {
      const uint32_t codes = encode_two<Codec<kFormat>>(x[i], x[i + 1]).bits;
      elements[i] = static_cast<T>(codes);
      elements[i + 1] = static_cast<T>(codes >> (8 * sizeof(T)));
    }
  }
  if (whole) {
    *reinterpret_cast<Words<kRun * sizeof(T)>*>(p) = *reinterpret_cast<const Words<kRun * sizeof(T)>*>(elements);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i < count) p[i] = elements[i];
    }
  }
}

}  // namespace plimsoll::kernels
