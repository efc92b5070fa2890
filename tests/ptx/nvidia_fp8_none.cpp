#include "tests/ptx/nvidia_fp8.h"

namespace plimsoll::ptx {

bool has_nvidia_fp8() { return false; }
uint8_t nvidia_e4m3(float) { return 0; }
uint8_t nvidia_e5m2(float) { return 0; }
uint16_t nvidia_e4m3_half(uint8_t) { return 0; }
uint16_t nvidia_e5m2_half(uint8_t) { return 0; }
float nvidia_e4m3_value(uint8_t) { return 0; }
float nvidia_e5m2_value(uint8_t) { return 0; }

}  // namespace plimsoll::ptx
