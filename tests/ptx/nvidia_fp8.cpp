#include "tests/ptx/nvidia_fp8.h"

#include <cuda_fp8.h>

namespace plimsoll::ptx {
namespace {

uint16_t half(uint8_t code, __nv_fp8_interpretation_t kind) { return __nv_cvt_fp8_to_halfraw(code, kind).x; }
float value(uint8_t code, __nv_fp8_interpretation_t kind) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kind)));
}

}  // namespace

bool has_nvidia_fp8() { return true; }
uint8_t nvidia_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
uint8_t nvidia_e5m2(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); }
uint16_t nvidia_e4m3_half(uint8_t code) { return half(code, __NV_E4M3); }
uint16_t nvidia_e5m2_half(uint8_t code) { return half(code, __NV_E5M2); }
float nvidia_e4m3_value(uint8_t code) { return value(code, __NV_E4M3); }
float nvidia_e5m2_value(uint8_t code) { return value(code, __NV_E5M2); }

}  // namespace plimsoll::ptx
