#include "plimsoll/ops/linear/fp4_codes.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// NaN > Inf > finite.
float amax_of(const std::vector<CodeSource>& sources) {
  std::vector<at::Tensor> amaxes;
  for_each_part(sources, [&](const at::Tensor& part, int64_t) { amaxes.push_back(find_amax(part).memory()); });
  uint32_t largest = 0;
  for (const float amax : read_on_host(amaxes)) largest = std::max(largest, std::bit_cast<uint32_t>(amax));
  return std::bit_cast<float>(largest);
}

}  // namespace

Fp4Codes fp4_codes_of(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling) {
  int64_t rows = 0;
  for (const CodeSource& source : sources) rows += source.weight.size(0);
  const int64_t cols = sources.front().weight.size(1), blocks = divide_up(cols, format::fp4_block(scaling));
  Fp4Codes result{.codes = at::empty({rows, divide_up(cols, 2)}, at::kByte),
                  .scale = at::empty({rows, blocks}, at::kByte),
                  .tensor_scale = at::empty({1}, at::kFloat)};
  const bool has_tensor_scale = format::is_nvfp4(scaling);
  const float amax = has_tensor_scale ? amax_of(sources) : 0;
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

}  // namespace plimsoll::ops
