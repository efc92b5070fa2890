#include "tests/ptx/narrow_formats.h"

#include <bit>
#include <cmath>

#include "plimsoll/format/code_table.h"

namespace plimsoll::ptx {
namespace {

using format::testing::CodeTable;

const CodeTable& fp16_table() {
  static const CodeTable table(format::testing::kFp16Layout);
  return table;
}
const CodeTable& bf16_table() {
  static const CodeTable table(format::testing::kBf16Layout);
  return table;
}
const CodeTable& e4m3_table() {
  static const CodeTable table(format::testing::kE4m3Layout);
  return table;
}
const CodeTable& e5m2_table() {
  static const CodeTable table(format::testing::kE5m2Layout);
  return table;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::bit_cast<float>(0x7fffffffu);

uint16_t wide_code(const CodeTable& table, float x) {
  if (std::isnan(x)) return 0x7fff;
  const uint32_t magnitude = table.nearest(std::fabs(static_cast<double>(x)));
  return static_cast<uint16_t>(magnitude | (std::signbit(x) ? 0x8000u : 0u));
}

uint8_t saturated_code(const CodeTable& table, float x) {
  if (std::isnan(x)) return 0x7f;
  const uint32_t magnitude = std::min(table.nearest(std::fabs(static_cast<double>(x))), table.finite_codes() - 1);
  return static_cast<uint8_t>(magnitude | (std::signbit(x) ? 0x80u : 0u));
}

// first_nan: the lowest code beyond finite values and Inf.
float value_of_code(const CodeTable& table, uint32_t code, uint32_t sign_bit, uint32_t first_nan) {
  const uint32_t magnitude = code & (sign_bit - 1);
  if (magnitude >= first_nan) return kNan;
  const float value = magnitude >= table.finite_codes() ? kInf : static_cast<float>(table.value(magnitude));
  return (code & sign_bit) != 0 ? -value : value;
}

}  // namespace

uint16_t fp16_of(float x) { return wide_code(fp16_table(), x); }
uint16_t bf16_of(float x) { return wide_code(bf16_table(), x); }
uint8_t e4m3_of(float x) { return saturated_code(e4m3_table(), x); }
uint8_t e5m2_of(float x) { return saturated_code(e5m2_table(), x); }

float fp32_of_fp16(uint16_t code) { return value_of_code(fp16_table(), code, 0x8000, 0x7c01); }
float fp32_of_bf16(uint16_t code) { return value_of_code(bf16_table(), code, 0x8000, 0x7f81); }
uint16_t fp16_of_e4m3(uint8_t code) { return fp16_of(value_of_code(e4m3_table(), code, 0x80, 0x7f)); }
uint16_t fp16_of_e5m2(uint8_t code) { return fp16_of(value_of_code(e5m2_table(), code, 0x80, 0x7d)); }

}  // namespace plimsoll::ptx
