// Elements of arrays whose formats are known at run time only, 64 at a time: a branch for 64 elements is not seen, and
// what is computed in between is compiled once for all formats.
#pragma once

#include "plimsoll/kernels/simd/lanes64.h"

namespace plimsoll::kernels {
namespace {

// An array that is read (kFp32, kBf16, kFp16), from its element `offset` on.
struct Source {
  const void* data;
  format::Format format;
  int64_t offset;

  __attribute__((always_inline)) Lanes64 load_64(int64_t i, Order order) const {
    if (format == format::Format::kBf16 && order == Order::kEvenOdd) {
      return kernels::load_64<format::Format::kBf16>(data, offset + i);
    }
    if (format == format::Format::kBf16) return in_order<format::Format::kBf16>(i);
    if (format == format::Format::kFp16) return in_order<format::Format::kFp16>(i);
    return in_order<format::Format::kFp32>(i);
  }
  __attribute__((always_inline)) F32x16 load_n(int64_t i, int64_t n) const {
    if (format == format::Format::kBf16) return load_as<format::Format::kBf16>(data, offset + i, n);
    if (format == format::Format::kFp16) return load_as<format::Format::kFp16>(data, offset + i, n);
    return load_as<format::Format::kFp32>(data, offset + i, n);
  }
  // Asks for the 64 elements that lie `bytes` ahead of element i.
  __attribute__((always_inline)) void ask(int64_t i, int64_t bytes) const {
    const int64_t size = bytes_of(format);
    for (int64_t byte = 0; byte < 64 * size; byte += 64) prefetch(data, (offset + i) * size + bytes + byte);
  }

 private:
  template <format::Format kFormat>
  __attribute__((always_inline)) Lanes64 in_order(int64_t i) const {
    const AllLanes all;
    return {{load_as<kFormat>(data, offset + i, all), load_as<kFormat>(data, offset + i + 16, all),
             load_as<kFormat>(data, offset + i + 32, all), load_as<kFormat>(data, offset + i + 48, all)}};
  }
};

// An array that is written, FP8 too: encode(value * inv_scale), saturating.
struct Target {
  void* data;
  format::Format format;
  int64_t offset;
  F32x16 inv_scale;

  __attribute__((always_inline)) void store_64(int64_t i, const Lanes64& value, Order order) const {
    if (format == format::Format::kE4m3) return encode_64<format::Format::kE4m3>(i, value, order);
    if (format == format::Format::kE5m2) return encode_64<format::Format::kE5m2>(i, value, order);
    if (format == format::Format::kBf16 && order == Order::kEvenOdd) {
      return kernels::store_64<format::Format::kBf16>(data, offset + i, value);
    }
    if (format == format::Format::kBf16) {
      uint16_t* halves = static_cast<uint16_t*>(data) + offset + i;
      store_bf16_32(halves, value.x[0], value.x[1]);
      return store_bf16_32(halves + 32, value.x[2], value.x[3]);
    }
    if (format == format::Format::kFp16) return kernels::store_64<format::Format::kFp16>(data, offset + i, value);
    kernels::store_64<format::Format::kFp32>(data, offset + i, value);
  }
  __attribute__((always_inline)) void store_n(int64_t i, F32x16 value, int64_t n) const {
    uint8_t* codes = static_cast<uint8_t*>(data) + offset + i;
    if (format == format::Format::kE4m3) {
      return store_u8_n(codes, encode_fp8<format::Format::kE4m3>(mul(value, inv_scale)), n);
    }
    if (format == format::Format::kE5m2) {
      return store_u8_n(codes, encode_fp8<format::Format::kE5m2>(mul(value, inv_scale)), n);
    }
    if (format == format::Format::kBf16) return store_as<format::Format::kBf16>(data, offset + i, value, n);
    if (format == format::Format::kFp16) return store_as<format::Format::kFp16>(data, offset + i, value, n);
    store_as<format::Format::kFp32>(data, offset + i, value, n);
  }
  __attribute__((always_inline)) void ask(int64_t i, int64_t bytes) const {
    const int64_t size = bytes_of(format);
    for (int64_t byte = 0; byte < 64 * size; byte += 64) prefetch_to_write(data, (offset + i) * size + bytes + byte);
  }

 private:
  template <format::Format kFormat>
  __attribute__((always_inline)) void encode_64(int64_t i, const Lanes64& value, Order order) const {
    uint8_t* codes = static_cast<uint8_t*>(data) + offset + i;
    const F32x16 x0 = mul(value.x[0], inv_scale), x1 = mul(value.x[1], inv_scale);
    const F32x16 x2 = mul(value.x[2], inv_scale), x3 = mul(value.x[3], inv_scale);
    constexpr auto kSaturate = format::Overflow::kSaturate;
    if (order == Order::kEvenOdd) return store_fp8_64<kFormat, kSaturate, Order::kEvenOdd>(codes, x0, x1, x2, x3);
    store_fp8_64<kFormat, kSaturate, Order::kInOrder>(codes, x0, x1, x2, x3);
  }
};

// The order of lanes that suits arrays read in `from` and written in `to`: as even and odd where BF16 comes in and BF16
// or FP8 goes out.
PLIMSOLL_INLINE Order order_between(format::Format from, format::Format to) {
  const bool narrow = to == format::Format::kBf16 || to == format::Format::kE4m3 || to == format::Format::kE5m2;
  return from == format::Format::kBf16 && narrow ? Order::kEvenOdd : Order::kInOrder;
}

}  // namespace
}  // namespace plimsoll::kernels
