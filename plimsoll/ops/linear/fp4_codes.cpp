#include "plimsoll/ops/linear/fp4_codes.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "plimsoll/format/e2m1.h"
#include "plimsoll/format/fp8.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using runtime::divide_up;

// E4M3 codes of the two E2M1 codes of a byte.
std::array<std::array<uint8_t, 2>, 256> e4m3_of_pairs() {
  std::array<std::array<uint8_t, 2>, 256> result{};
  for (size_t pair = 0; pair < result.size(); ++pair) {
    for (size_t half = 0; half < 2; ++half) {
      const auto code = static_cast<uint8_t>((pair >> (4 * half)) & 0xf);
      result[pair][half] = format::E4m3::encode(format::E2m1::decode(code));
    }
  }
  return result;
}

// Scales of blocks times those of their tensors.
at::Tensor joint_scales(const Fp4Codes& codes) {
  const int64_t rows = codes.scale.size(0), blocks = codes.scale.size(1);
  at::Tensor result = at::empty({rows, blocks}, at::kFloat);
  const auto* from = codes.scale.const_data_ptr<uint8_t>();
  const auto* of_tensor = codes.tensor_scale.const_data_ptr<float>();
  const int64_t step = codes.tensor_scale.numel() > 1 ? 1 : 0;
  auto* to = result.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = row * blocks; i < (row + 1) * blocks; ++i) {
      to[i] = format::E4m3::decode(from[i]) * of_tensor[row * step];
    }
  }
  return result;
}

Fp4Codes joined_fp4(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling) {
  Fp4Codes result{.codes = joined_codes(sources), .scale = joined_scales(sources), .tensor_scale = {}};
  if (format::is_nvfp4(scaling)) result.tensor_scale = joined_tensor_scales(sources);
  result.cols = result.codes.size(1) * 2;
  return result;
}

}  // namespace

float amax_of_sources(const std::vector<CodeSource>& sources) {
  std::vector<at::Tensor> amaxes;
  for_each_part(sources, [&](const at::Tensor& part, int64_t) { amaxes.push_back(find_amax(part).memory()); });
  uint32_t largest = 0;
  for (const float amax : read_on_host(amaxes)) largest = std::max(largest, std::bit_cast<uint32_t>(amax));
  return std::bit_cast<float>(largest);
}

Fp4Codes fp4_codes_of(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling,
                      std::optional<float> amax_of_tensor) {
  if (sources.front().is_stored()) return joined_fp4(sources, scaling);
  int64_t rows = 0;
  for (const CodeSource& source : sources) rows += source.rows();
  const int64_t cols = sources.front().weight.size(1), blocks = divide_up(cols, format::fp4_block(scaling));
  Fp4Codes result{.codes = at::empty({rows, divide_up(cols, 2)}, at::kByte),
                  .scale = at::empty({rows, blocks}, at::kByte),
                  .tensor_scale = at::empty({1}, at::kFloat),
                  .cols = cols};
  const bool has_tensor_scale = format::is_nvfp4(scaling);
  const float amax = !has_tensor_scale ? 0 : amax_of_tensor ? *amax_of_tensor : amax_of_sources(sources);
  for_each_part(sources, [&](const at::Tensor& rows_of_one, int64_t first_row) {
    const at::Tensor part = rows_of_one.contiguous();
    const at::Tensor codes = result.codes.narrow(0, first_row, part.size(0));
    const watch::Span span("quantize", {.bytes = traffic(part, codes)});
    kernels::quantize_fp4({.x = part.const_data_ptr(),
                           .x_format = format_of(part.scalar_type(), "quantize"),
                           .rows = part.size(0),
                           .cols = cols,
                           .x_stride = cols,
                           .scaling = scaling,
                           .by_row = {.codes = codes.mutable_data_ptr<uint8_t>(),
                                      .codes_stride = result.codes.size(1),
                                      .scale = result.scale.mutable_data_ptr<uint8_t>() + first_row * blocks,
                                      .scale_stride = blocks,
                                      .tensor_amax = has_tensor_scale ? &amax : nullptr,
                                      .tensor_scale = result.tensor_scale.mutable_data_ptr<float>()}});
  });
  if (!has_tensor_scale) result.tensor_scale.reset();
  return result;
}

ScaledTensor as_e4m3(const Fp4Codes& codes, format::Fp4Scaling scaling) {
  static const auto pairs = e4m3_of_pairs();
  const int64_t rows = codes.codes.size(0), bytes = codes.codes.size(1), cols = codes.cols;
  const bool has_tensor_scale = format::is_nvfp4(scaling);
  ScaledTensor result{.data = at::empty({rows, cols}, at::kByte),
                      .scale = has_tensor_scale ? joint_scales(codes) : codes.scale.contiguous(),
                      .format = format::Format::kE4m3,
                      .granularity = {1, format::fp4_block(scaling)},
                      .scale_format = has_tensor_scale ? format::Format::kFp32 : format::Format::kE8m0};
  const at::Tensor packed = codes.codes.contiguous();
  const auto* from = packed.const_data_ptr<uint8_t>();
  auto* to = result.data.mutable_data_ptr<uint8_t>();
  runtime::parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        to[row * cols + col] = pairs[from[row * bytes + col / 2]][static_cast<size_t>(col % 2)];
      }
    }
  });
  return result;
}

}  // namespace plimsoll::ops
