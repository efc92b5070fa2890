#include "plimsoll/ops/linear/decode_codes.h"

#include <ATen/ops/empty.h>

#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/ops/linear/fp4_codes.h"
#include "plimsoll/ops/linear/packed_weights.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/recipe/operand.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

at::Tensor decode_fp4(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling, at::ScalarType dtype) {
  const Fp4Codes stored = fp4_codes_of(sources, scaling);
  const at::Tensor codes = stored.codes.contiguous(), scale = stored.scale.contiguous();
  const int64_t rows = codes.size(0);
  at::Tensor output = at::empty({rows, stored.cols}, dtype);
  kernels::ScaleView view{.data = scale.const_data_ptr(),
                          .format = format::fp4_scale_format(scaling),
                          .block_rows = 1,
                          .block_cols = format::fp4_block(scaling),
                          .row_stride = scale.size(1),
                          .col_stride = 1};
  if (stored.tensor_scale.defined()) {
    view.tensor = stored.tensor_scale.const_data_ptr<float>();
    view.tensor_row_stride = stored.tensor_scale.numel() > 1 ? 1 : 0;
  }
  kernels::dequantize({.codes = codes.const_data_ptr<uint8_t>(),
                       .format = format::Format::kE2m1,
                       .rows = rows,
                       .cols = stored.cols,
                       .codes_stride = 2 * codes.size(1),
                       .scale = view,
                       .output = output.mutable_data_ptr(),
                       .output_format = format_of(dtype, "decode"),
                       .output_stride = stored.cols});
  return output;
}

}  // namespace

at::Tensor decode_codes(const std::vector<CodeSource>& sources, CodeKind kind, at::ScalarType dtype) {
  switch (kind) {
    case CodeKind::kE4m3Rows:
    case CodeKind::kE4m3Blocks:
      return dequantize(codes_of(sources, recipe::kPerRow), dtype);
    case CodeKind::kNvfp4:
      return decode_fp4(sources, format::Fp4Scaling::kNvfp4, dtype);
    case CodeKind::kMxfp4:
      return decode_fp4(sources, format::Fp4Scaling::kMxfp4, dtype);
  }
  runtime::unexpected("codes: kind", static_cast<int>(kind));
}

}  // namespace plimsoll::ops
