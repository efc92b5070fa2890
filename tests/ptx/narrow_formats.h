// Conversions between FP32 and narrower formats as PTX says of cvt, by the table of a format's values (format/code_table.h), apart
// from format/'s own codecs.
#pragma once

#include <cstdint>

namespace plimsoll::ptx {

// Nearest, ties to even; beyond the largest value Inf. NaN: 0x7fff.
uint16_t fp16_of(float x);
uint16_t bf16_of(float x);
// .satfinite: beyond the largest value, and for Inf, that value. NaN: 0x7f.
uint8_t e4m3_of(float x);
uint8_t e5m2_of(float x);

// Exact. NaN: 0x7fffffff; of FP8, to FP16: 0x7fff.
float fp32_of_fp16(uint16_t code);
float fp32_of_bf16(uint16_t code);
uint16_t fp16_of_e4m3(uint8_t code);
uint16_t fp16_of_e5m2(uint8_t code);

}  // namespace plimsoll::ptx
