#include "plimsoll/kernels/gemm/gemm_test_support.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

namespace plimsoll::kernels::testing {
namespace {

struct Layout754 {
  int bits, exponent_bits, mantissa_bits;
};

Layout754 layout_of(Format format) {
  switch (format) {
    case Format::kFp16:
      return {16, 5, 10};
    case Format::kBf16:
      return {16, 8, 7};
    case Format::kE4m3:
      return {8, 4, 3};
    case Format::kE5m2:
      return {8, 5, 2};
    default:
      return {32, 8, 23};
  }
}

int64_t bytes_of(Format format) { return layout_of(format).bits / 8; }

// The finite, non-negative values of a format in order; index = code.
const std::vector<double>& finite_values(Format format) {
  static std::map<Format, std::vector<double>> tables;
  std::vector<double>& table = tables[format];
  for (uint32_t code = static_cast<uint32_t>(table.size()); code < (1u << (layout_of(format).bits - 1)); ++code) {
    const double value = decode_reference(format, code);
    if (!std::isfinite(value)) break;
    table.push_back(value);
  }
  return table;
}

}  // namespace

double decode_reference(Format format, uint32_t code) {
  const Layout754 layout = layout_of(format);
  const uint32_t mantissa = code & ((1u << layout.mantissa_bits) - 1);
  const int exponent = static_cast<int>((code >> layout.mantissa_bits) & ((1u << layout.exponent_bits) - 1));
  const int bias = (1 << (layout.exponent_bits - 1)) - 1, top = (1 << layout.exponent_bits) - 1;
  const double sign = ((code >> (layout.bits - 1)) & 1u) != 0 ? -1.0 : 1.0;
  if (format == Format::kE4m3) {
    if (exponent == top && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == top) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const double hidden = exponent == 0 ? 0.0 : std::ldexp(1.0, layout.mantissa_bits);
  return sign * std::ldexp(hidden + mantissa, std::max(exponent, 1) - bias - layout.mantissa_bits);
}

uint32_t encode_reference(Format format, float x) {
  if (format == Format::kFp32) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
  }
  const uint32_t sign = std::signbit(x) ? 1u << (layout_of(format).bits - 1) : 0u;
  const std::vector<double>& table = finite_values(format);
  const uint32_t largest = static_cast<uint32_t>(table.size()) - 1;
  const bool fp8 = bytes_of(format) == 1, has_inf = format != Format::kE4m3;
  if (std::isnan(x)) return sign | (fp8 ? 0x7fu : largest + 1 + (1u << (layout_of(format).mantissa_bits - 1)));
  const double magnitude = std::abs(static_cast<double>(x));
  if (std::isinf(x)) return sign | (has_inf ? largest + 1 : largest);
  const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
  if (above == table.end()) {
    const double half_step = (table[largest] - table[largest - 1]) / 2;
    const bool to_inf = !fp8 && magnitude >= table[largest] + half_step;
    return sign | (to_inf ? largest + 1 : largest);
  }
  const uint32_t high = static_cast<uint32_t>(above - table.begin()), low = high == 0 ? 0 : high - 1;
  const double to_high = table[high] - magnitude, to_low = magnitude - table[low];
  if (to_high != to_low) return sign | (to_high < to_low ? high : low);
  return sign | (high % 2 == 0 ? high : low);
}

double read_reference(Format format, const void* base, int64_t index) {
  uint32_t code = 0;
  std::memcpy(&code, static_cast<const char*>(base) + index * bytes_of(format), static_cast<size_t>(bytes_of(format)));
  return decode_reference(format, code);
}

Operand::Operand(int64_t rows, int64_t k, Format format, uint32_t seed, OperandOptions options)
    : rows_(rows), k_(k), offset_(options.misalign) {
  const bool k_contiguous = options.layout == Layout::kKContiguous;
  view_.format = format;
  view_.k_stride = k_contiguous ? 1 : rows + options.padding;
  view_.row_stride = k_contiguous ? k + options.padding : 1;
  const int64_t lines = k_contiguous ? rows : k, length = k_contiguous ? k : rows;
  const int64_t elements = lines == 0 ? 0 : (lines - 1) * (length + options.padding) + length;
  storage_.resize(static_cast<size_t>(offset_ + elements * bytes_of(format)));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, static_cast<float>(options.magnitude));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; ++i) set_code(row, i, encode_reference(format, normal(random)));
  }
}

void Operand::add_scales(int64_t block_rows, int64_t block_k, Format format, uint32_t seed) {
  const int64_t lines = block_rows == 0 ? 1 : (rows_ + block_rows - 1) / block_rows;
  const int64_t length = block_k == 0 ? 1 : (k_ + block_k - 1) / block_k;
  view_.scale = {
      .format = format, .block_rows = block_rows, .block_cols = block_k, .row_stride = length, .col_stride = 1};
  const bool e8m0 = format == Format::kE8m0;
  scales_.resize(static_cast<size_t>(lines * length * (e8m0 ? 1 : 4)));
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-4.0f, 4.0f);
  for (int64_t i = 0; i < lines * length; ++i) {
    const float drawn = exponent(random), scale = std::exp2(drawn);
    uint32_t code = static_cast<uint32_t>(127 + std::lround(drawn));
    if (!e8m0) std::memcpy(&code, &scale, sizeof(code));
    set_scale_code(i / length, i % length, code);
  }
}

void Operand::set_code(int64_t row, int64_t index, uint32_t code) {
  const int64_t element = row * view_.row_stride + index * view_.k_stride;
  std::memcpy(storage_.data() + offset_ + element * bytes_of(view_.format), &code,
              static_cast<size_t>(bytes_of(view_.format)));
}

void Operand::set_scale_code(int64_t block_row, int64_t block_k, uint32_t code) {
  const int64_t size = view_.scale.format == Format::kE8m0 ? 1 : 4;
  std::memcpy(scales_.data() + (block_row * view_.scale.row_stride + block_k) * size, &code, static_cast<size_t>(size));
}

GemmOperand Operand::view() const {
  GemmOperand view = view_;
  view.data = storage_.data() + offset_;
  view.scale.data = scales_.empty() ? nullptr : scales_.data();
  return view;
}

double Operand::value(int64_t row, int64_t index) const {
  const double element =
      read_reference(view_.format, storage_.data() + offset_, row * view_.row_stride + index * view_.k_stride);
  if (scales_.empty()) return element;
  const ScaleView& scale = view_.scale;
  const int64_t block_row = scale.block_rows == 0 ? 0 : row / scale.block_rows;
  const int64_t block_k = scale.block_cols == 0 ? 0 : index / scale.block_cols;
  const int64_t position = block_row * scale.row_stride + block_k;
  if (scale.format != Format::kE8m0) return element * read_reference(Format::kFp32, scales_.data(), position);
  const int code = static_cast<int>(scales_[static_cast<size_t>(position)]);
  return element * (code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127));
}

double Operand::largest() const {
  double result = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t i = 0; i < k_; ++i) result = std::max(result, std::abs(value(row, i)));
  }
  return result;
}

bool within(double actual, double expected, double tolerance) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual);
  if (std::isinf(expected) || std::isinf(actual)) return expected == actual;
  return std::abs(actual - expected) <= tolerance;
}

Exact exact_product(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k, double alpha) {
  const double largest = std::max({1.0, a.largest(), b.largest()});
  std::vector<double> a_values(static_cast<size_t>(m * k)), b_values(static_cast<size_t>(n * k));
  for (size_t i = 0; i < a_values.size(); ++i) {
    a_values[i] = a.value(static_cast<int64_t>(i) / k, static_cast<int64_t>(i) % k);
  }
  for (size_t i = 0; i < b_values.size(); ++i) {
    b_values[i] = b.value(static_cast<int64_t>(i) / k, static_cast<int64_t>(i) % k);
  }
  Exact exact;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, absolute = 0;
      for (int64_t l = 0; l < k; ++l) {
        const double term = a_values[static_cast<size_t>(i * k + l)] * b_values[static_cast<size_t>(j * k + l)];
        sum += term;
        absolute += std::abs(term);
      }
      exact.value.push_back(alpha * sum);
      exact.tolerance.push_back(gemm_error_bound(k, std::abs(alpha) * absolute, largest));
    }
  }
  return exact;
}

std::vector<float> product(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k, GemmEpilogue epilogue,
                           const void* packed_b) {
  std::vector<float> output(static_cast<size_t>(m * n), -1.0f);
  gemm({.a = a.view(),
        .b = b.view(),
        .m = m,
        .n = n,
        .k = k,
        .output = output.data(),
        .output_stride = n,
        .epilogue = epilogue,
        .packed_b = packed_b});
  return output;
}

::testing::AssertionResult all_within(const std::vector<float>& actual, const Exact& exact) {
  for (size_t i = 0; i < exact.value.size(); ++i) {
    if (!within(actual[i], exact.value[i], exact.tolerance[i])) {
      return ::testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", expected " << exact.value[i]
                                           << " within " << exact.tolerance[i];
    }
  }
  return ::testing::AssertionSuccess();
}

std::string describe(Format a, Format b, int64_t m, int64_t n, int64_t k, runtime::Isa isa) {
  return std::string(format::info(a).name) + " x " + std::string(format::info(b).name) + " " + std::to_string(m) + "x" +
         std::to_string(n) + "x" + std::to_string(k) + " on " + std::string(runtime::name(isa));
}

}  // namespace plimsoll::kernels::testing
