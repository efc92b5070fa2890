// Operands with their values in double, decoded by rules written apart from format/, and the exact product.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels::testing {

using format::Format;

inline const std::vector<Format> kOperandFormats = {Format::kFp32, Format::kFp16, Format::kBf16, Format::kE4m3,
                                                    Format::kE5m2};

// The levels to test: every one that this processor has; in tests/amx, emulated tiles alone.
std::vector<runtime::Isa> isas();

// The value of a code: sign * mantissa * 2^exponent by the format's definition.
double decode_reference(Format format, uint32_t code);
// The code whose value is nearest to x, found among all codes (16 and 8 bits), ties to even, finite values saturating
// in FP8.
uint32_t encode_reference(Format format, float x);
double read_reference(Format format, const void* base, int64_t index);

enum class Layout { kKContiguous, kRowContiguous };

struct OperandOptions {
  Layout layout = Layout::kKContiguous;
  int64_t padding = 0;     // of the leading dimension, elements
  int64_t misalign = 0;    // bytes before the first element
  double magnitude = 1.0;  // values are normal with this deviation
};

// A [rows, k] operand; owns its memory.
class Operand {
 public:
  Operand(int64_t rows, int64_t k, Format format, uint32_t seed, OperandOptions options = {});

  // Blocks of scales drawn around 1: [ceil(rows / block_rows), ceil(k / block_k)], 0 for the whole extent.
  void add_scales(int64_t block_rows, int64_t block_k, Format format, uint32_t seed);
  void set_code(int64_t row, int64_t index, uint32_t code);
  void set_scale_code(int64_t block_row, int64_t block_k, uint32_t code);

  GemmOperand view() const;
  double value(int64_t row, int64_t index) const;  // scale included
  double largest() const;

 private:
  int64_t rows_, k_;
  GemmOperand view_;
  int64_t offset_;
  std::vector<std::byte> storage_;
  std::vector<std::byte> scales_;
};

// |actual - expected| <= tolerance; NaN only matches NaN, an infinity only itself.
bool within(double actual, double expected, double tolerance);

struct Exact {
  std::vector<double> value, tolerance;  // [m, n]; tolerance of the FP32 result
};
Exact exact_product(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k, double alpha = 1.0);

// A product into packed FP32, the operands' sizes given.
std::vector<float> product(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k,
                           GemmEpilogue epilogue = {}, const void* packed_b = nullptr);

::testing::AssertionResult all_within(const std::vector<float>& actual, const Exact& exact);

std::string describe(Format a, Format b, int64_t m, int64_t n, int64_t k, runtime::Isa isa);

}  // namespace plimsoll::kernels::testing
