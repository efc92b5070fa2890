// The codecs of format/ on a device, one element a thread. The fast conversions of two values stand beside them.
#include "plimsoll/kernels/cuda/convert.cuh"

namespace plimsoll::kernels {

#define PLIMSOLL_CODEC(name, Codec)                                                                       \
  extern "C" __global__ void encode_##name(const float* x, Codec::Code* y, int64_t count) {               \
    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;                                            \
    if (i < count) y[i] = Codec::encode(x[i]);                                                            \
  }                                                                                                       \
  extern "C" __global__ void encode_##name##_overflowing(const float* x, Codec::Code* y, int64_t count) { \
    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;                                            \
    if (i < count) y[i] = Codec::encode(x[i], format::Overflow::kNonFinite);                              \
  }                                                                                                       \
  extern "C" __global__ void encode_##name##_by_two(const float* x, Codec::Code* y, int64_t count) {      \
    const int64_t i = 2 * (blockIdx.x * int64_t{256} + threadIdx.x);                                      \
    if (i + 1 >= count) return;                                                                           \
    const uint32_t codes = encode_two<Codec>(x[i], x[i + 1]).bits;                                        \
    y[i] = static_cast<Codec::Code>(codes);                                                               \
    y[i + 1] = static_cast<Codec::Code>(codes >> Codec::kBits);                                           \
  }                                                                                                       \
  extern "C" __global__ void decode_##name(const Codec::Code* x, float* y, int64_t count) {               \
    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;                                            \
    if (i < count) y[i] = Codec::decode(x[i]);                                                            \
  }

PLIMSOLL_CODEC(e4m3, format::E4m3)
PLIMSOLL_CODEC(e5m2, format::E5m2)
PLIMSOLL_CODEC(bf16, format::Bf16)
PLIMSOLL_CODEC(fp16, format::Fp16)

extern "C" __global__ void decode_fp16_by_card(const uint16_t* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < count) y[i] = decode_fp16(x[i]);
}

}  // namespace plimsoll::kernels
