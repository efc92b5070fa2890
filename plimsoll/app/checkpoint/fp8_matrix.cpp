#include "plimsoll/app/checkpoint/fp8_matrix.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plimsoll/format/fp8.h"
#include "plimsoll/runtime/divide_up.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kFp8Block = 128;

std::array<double, 256> values_of_e4m3() {
  std::array<double, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = static_cast<double>(format::E4m3::decode(static_cast<uint8_t>(code)));
  }
  return values;
}

bool has_shape(const at::Tensor& tensor, int64_t rows, int64_t cols) {
  return tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == cols;
}

bool is_scale_of_e4m3(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

}  // namespace

std::optional<Fp8Matrix> fp8_matrix(const std::string& name, const at::Tensor& tensor, const FindTensor& find) {
  constexpr std::string_view kWeight = "weight";
  if (!name.ends_with(kWeight) || tensor.scalar_type() != at::kFloat8_e4m3fn || tensor.dim() != 2) return {};
  const int64_t rows = tensor.size(0), cols = tensor.size(1);
  for (const char* suffix : {"_scale", "_scale_inv"}) {
    const at::Tensor scale = find(name + suffix);
    if (!is_scale_of_e4m3(scale)) continue;
    Fp8Matrix matrix{.codes = tensor, .scale = scale.to(at::kFloat).contiguous()};
    if (scale.numel() == 1) {
      matrix.scale = matrix.scale.view({1, 1});
      matrix.scale_rows = std::max<int64_t>(rows, 1);
      matrix.scale_cols = std::max<int64_t>(cols, 1);
    } else if (has_shape(scale, rows, 1)) {
      matrix.scale_rows = 1;
      matrix.scale_cols = std::max<int64_t>(cols, 1);
    } else if (has_shape(scale, runtime::divide_up(rows, kFp8Block), runtime::divide_up(cols, kFp8Block))) {
      matrix.scale_rows = matrix.scale_cols = kFp8Block;
    } else {
      continue;
    }
    return matrix;
  }
  return {};
}

TensorStatistics statistics_of(const Fp8Matrix& matrix) {
  static const std::array<double, 256> decoded = values_of_e4m3();
  const at::Tensor codes = matrix.codes.contiguous();
  const int64_t rows = codes.size(0), cols = codes.size(1), scales_of_row = matrix.scale.size(1);
  const auto* from = static_cast<const uint8_t*>(codes.const_data_ptr());
  const auto* scales = matrix.scale.const_data_ptr<float>();
  StatisticsOfParts values;
  std::vector<double> row(static_cast<size_t>(cols));
  for (int64_t line = 0; line < rows; ++line) {
    const float* of_row = scales + line / matrix.scale_rows * scales_of_row;
    for (int64_t begin = 0; begin < cols; begin += matrix.scale_cols) {
      const double scale = of_row[begin / matrix.scale_cols];
      const int64_t end = std::min(cols, begin + matrix.scale_cols);
      for (int64_t i = begin; i < end; ++i) row[static_cast<size_t>(i)] = decoded[from[line * cols + i]] * scale;
    }
    values.add(row);
  }
  return values.result();
}

}  // namespace plimsoll::app
