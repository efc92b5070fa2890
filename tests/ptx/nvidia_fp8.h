// Conversions of NVIDIA's cuda_fp8.h on a host. nvidia_fp8_none.cpp stands in for it where there is none.
#pragma once

#include <cstdint>

namespace plimsoll::ptx {

bool has_nvidia_fp8();

// Saturating.
uint8_t nvidia_e4m3(float x);
uint8_t nvidia_e5m2(float x);
// As FP16, and as FP32.
uint16_t nvidia_e4m3_half(uint8_t code);
uint16_t nvidia_e5m2_half(uint8_t code);
float nvidia_e4m3_value(uint8_t code);
float nvidia_e5m2_value(uint8_t code);

}  // namespace plimsoll::ptx
