#include "plimsoll/app/checkpoint/four_bits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plimsoll/format/e2m1.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/runtime/divide_up.h"

namespace plimsoll::app {
namespace {

using format::Fp4Scaling;

constexpr std::string_view kPackedSuffix = "weight_packed";
constexpr uint8_t kMagnitude = 7, kLargestCode = 7;  // bits of a code without its sign; that of 6
// The tensor's factor and a block's are each rounded to FP32, by 2^-24 at the most: what is nearer to 6 than 2^-22 of it
// need not lie beyond.
constexpr double kBeyond = 6 * (1 + 0x1p-22);

// Elements read at a time, so that a large file needs little memory.
int64_t rows_at_once(int64_t cols) {
  constexpr int64_t kElements = int64_t{1} << 20;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, cols));
}

double share_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

struct FourBitCounts {
  int64_t elements = 0, saturated = 0, flushed = 0;
  int64_t blocks = 0, flushed_blocks = 0;

  FourBitShares shares() const {
    return {.saturated = share_of(saturated, elements),
            .flushed = share_of(flushed, elements),
            .flushed_blocks = share_of(flushed_blocks, blocks)};
  }
};

uint8_t magnitude_at(const uint8_t* codes, int64_t i) {
  return static_cast<uint8_t>(codes[i / 2] >> (4 * (i % 2))) & kMagnitude;
}

// Scale of a block, and the factor of its values before they are encoded.
struct BlockScale {
  float scale = 1, factor = 1;
};

BlockScale block_scale(uint8_t code, Fp4Scaling scaling, float encode_scale) {
  const float scale = format::fp4_decode_scale(scaling, code);
  return {scale,
          format::is_nvfp4(scaling) ? format::Nvfp4::factor(encode_scale, code) : format::E8m0::decode_inverse(code)};
}

// One block of values and its codes, from element `begin` of a row. Under a scale of zero all values are zero, whatever
// their codes are.
void count_block(const float* x, const uint8_t* codes, int64_t begin, int64_t end, const BlockScale& block,
                 FourBitCounts& counts) {
  int64_t nonzero = 0, flushed = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (x[i] == 0.0f) continue;
    ++nonzero;
    flushed += block.scale == 0.0f || magnitude_at(codes, i) == 0;
    counts.saturated += block.scale != 0.0f && std::fabs(double{x[i]} * block.factor) > kBeyond;
  }
  counts.elements += nonzero;
  counts.flushed += flushed;
  counts.blocks += nonzero > 0;
  counts.flushed_blocks += nonzero > 0 && flushed == nonzero;
}

// Codes of some rows and their scales.
struct CodedRows {
  std::vector<uint8_t> codes = {}, scale = {};
  int64_t bytes = 0, blocks = 0;  // of a row
};

CodedRows encode_rows(const at::Tensor& rows, Fp4Scaling scaling, const float& amax) {
  const int64_t count = rows.size(0), cols = rows.size(1);
  CodedRows result{.bytes = runtime::divide_up(cols, int64_t{2}),
                   .blocks = runtime::divide_up(cols, format::fp4_block(scaling))};
  result.codes.resize(static_cast<size_t>(count * result.bytes));
  result.scale.resize(static_cast<size_t>(count * result.blocks));
  float tensor_scale = 1;
  kernels::quantize_fp4({.x = rows.const_data_ptr(),
                         .x_format = format::Format::kFp32,
                         .rows = count,
                         .cols = cols,
                         .x_stride = cols,
                         .scaling = scaling,
                         .by_row = {.codes = result.codes.data(),
                                    .codes_stride = result.bytes,
                                    .scale = result.scale.data(),
                                    .scale_stride = result.blocks,
                                    .tensor_amax = format::is_nvfp4(scaling) ? &amax : nullptr,
                                    .tensor_scale = &tensor_scale}});
  return result;
}

// NaN where the file has a factor that nobody can divide by, which would leave values of zero or of another sign.
double tensor_scale(const PackedMatrix& matrix) {
  const float scale = 1.0f / matrix.factor;
  return std::isfinite(matrix.factor) && matrix.factor > 0 && std::isfinite(scale) ? scale : std::nan("");
}

// Values of all codes under one scale.
std::array<double, 16> values_under(double scale) {
  std::array<double, 16> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = static_cast<double>(format::E2m1::decode(static_cast<uint8_t>(code))) * scale;
  }
  return values;
}

}  // namespace

std::optional<FourBitShares> four_bit_shares(const at::Tensor& matrix, double amax, Fp4Scaling scaling) {
  const at::ScalarType dtype = matrix.scalar_type();
  const bool has_values = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (matrix.dim() != 2 || !has_values || !std::isfinite(amax)) return {};
  const auto largest = static_cast<float>(amax);
  const float encode_scale = format::Nvfp4::encode_scale(largest, scaling);
  const int64_t cols = matrix.size(1), block = format::fp4_block(scaling);
  FourBitCounts counts;
  const int64_t step = rows_at_once(cols);
  for (int64_t first = 0; first < matrix.size(0); first += step) {
    const int64_t count = std::min(step, matrix.size(0) - first);
    const at::Tensor rows = matrix.narrow(0, first, count).to(at::kFloat).contiguous();
    const CodedRows coded = encode_rows(rows, scaling, largest);
    const auto* x = rows.const_data_ptr<float>();
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t i = 0; i < coded.blocks; ++i) {
        const uint8_t scale = coded.scale[static_cast<size_t>(row * coded.blocks + i)];
        count_block(x + row * cols, coded.codes.data() + row * coded.bytes, i * block, std::min(cols, (i + 1) * block),
                    block_scale(scale, scaling, encode_scale), counts);
      }
    }
  }
  return counts.shares();
}

std::optional<PackedMatrix> packed_matrix(const std::string& name, const at::Tensor& tensor, const FindTensor& find) {
  if (!name.ends_with(kPackedSuffix) || tensor.scalar_type() != at::kByte || tensor.dim() != 2) return {};
  const std::string weight = name.substr(0, name.size() - std::string_view("_packed").size());
  const at::Tensor scale = find(weight + "_scale");
  if (!scale.defined() || scale.dim() != 2 || scale.size(0) != tensor.size(0)) return {};
  const auto has_blocks_of = [&](Fp4Scaling scaling) {
    return scale.size(1) * format::fp4_block(scaling) == 2 * tensor.size(1);
  };
  const at::ScalarType dtype = scale.scalar_type();
  if (dtype == at::kFloat8_e4m3fn && has_blocks_of(Fp4Scaling::kNvfp4)) {
    const at::Tensor factor = find(weight + "_global_scale");
    if (!factor.defined() || factor.scalar_type() != at::kFloat || factor.numel() != 1) return {};
    return PackedMatrix{
        .scaling = Fp4Scaling::kNvfp4, .codes = tensor, .scale = scale.view(at::kByte), .factor = factor.item<float>()};
  }
  if ((dtype == at::kByte || dtype == at::kFloat8_e8m0fnu) && has_blocks_of(Fp4Scaling::kMxfp4)) {
    return PackedMatrix{.scaling = Fp4Scaling::kMxfp4, .codes = tensor, .scale = scale.view(at::kByte)};
  }
  return {};
}

PackedStatistics statistics_of(const PackedMatrix& matrix) {
  const at::Tensor codes = matrix.codes.contiguous(), scale = matrix.scale.contiguous();
  const int64_t bytes = codes.size(1), blocks = scale.size(1), block = format::fp4_block(matrix.scaling);
  const auto* from = codes.const_data_ptr<uint8_t>();
  const auto* scales = scale.const_data_ptr<uint8_t>();
  const double of_tensor = tensor_scale(matrix);
  FourBitCounts counts;
  StatisticsOfParts values;
  std::vector<double> row(static_cast<size_t>(matrix.cols()));
  for (int64_t line = 0; line < matrix.rows(); ++line) {
    const uint8_t* of_row = from + line * bytes;
    for (int64_t i = 0; i < blocks; ++i) {
      const uint8_t code_of_scale = scales[line * blocks + i];
      const std::array<double, 16> decoded =
          values_under(static_cast<double>(format::fp4_decode_scale(matrix.scaling, code_of_scale)) * of_tensor);
      int64_t zeros = 0;
      for (int64_t j = i * block; j < (i + 1) * block; ++j) {
        const uint8_t code = static_cast<uint8_t>(of_row[j / 2] >> (4 * (j % 2))) & 0xf;
        const double value = decoded[code];
        row[static_cast<size_t>(j)] = value;
        zeros += value == 0;
        counts.saturated += value != 0 && (code & kMagnitude) == kLargestCode;
      }
      counts.flushed += zeros;
      counts.flushed_blocks += zeros == block;
    }
    values.add(row);
    counts.elements += matrix.cols();
    counts.blocks += blocks;
  }
  return {.values = values.result(), .shares = counts.shares()};
}

}  // namespace plimsoll::app
