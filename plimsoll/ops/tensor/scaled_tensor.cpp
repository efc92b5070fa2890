#include "plimsoll/ops/tensor/scaled_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/kernels/dequantize/dequantize_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

// As many as it takes, without a sum that could overflow.
int64_t blocks_in(int64_t extent, int64_t block) {
  return block == 0 ? 1 : extent / block + static_cast<int64_t>(extent % block != 0);
}

// Scales of E2M1 codes, in the matrix that `data` holds. Packed codes have their block scales among them.
kernels::ScaleView fp4_scale_view(const ScaledTensor& tensor) {
  const recipe::Granularity blocks = tensor.granularity;
  const int64_t fp4_block = tensor.turned ? blocks.block_rows : blocks.block_cols;
  kernels::ScaleView view{.format = tensor.scale_format,
                          .block_rows = tensor.turned ? blocks.block_cols : blocks.block_rows,
                          .block_cols = fp4_block,
                          .row_stride = blocks_in(tensor.length, fp4_block),
                          .col_stride = 1};
  if (tensor.block_scale.defined()) {
    view.data = tensor.block_scale.const_data_ptr();
    view.row_stride = tensor.block_scale.stride(0);
    view.col_stride = tensor.block_scale.stride(1);
  }
  if (tensor.scale.defined()) {
    view.tensor = tensor.scale.const_data_ptr<float>();
    view.tensor_row_stride = tensor.scale.numel() > 1 ? 1 : 0;
  }
  return view;
}

at::Tensor dequantize_fp4(const ScaledTensor& tensor, at::ScalarType dtype) {
  TORCH_CHECK(tensor.block_scale.defined(), "dequantize: expected E2M1 codes that are not packed, got packed ones");
  const int64_t lines = tensor.data.size(0);
  at::Tensor output = at::empty({lines, tensor.length}, tensor.data.options().dtype(dtype));
  const watch::Span span("dequantize", {.bytes = traffic(tensor.data, output)});
  kernels::dequantize({.codes = tensor.data.const_data_ptr<uint8_t>(),
                       .format = tensor.format,
                       .rows = lines,
                       .cols = tensor.length,
                       .codes_stride = 2 * tensor.data.size(1),
                       .scale = fp4_scale_view(tensor),
                       .output = output.mutable_data_ptr(),
                       .output_format = format_of(dtype, "dequantize"),
                       .output_stride = tensor.length});
  return tensor.turned ? output.t().contiguous() : output;
}

}  // namespace

std::array<int64_t, 2> scale_shape(recipe::Granularity granularity, int64_t rows, int64_t cols) {
  return {blocks_in(rows, granularity.block_rows), blocks_in(cols, granularity.block_cols)};
}

ScaledTensor plain_values(at::Tensor values, format::Format format) {
  ScaledTensor tensor;
  tensor.data = std::move(values);
  tensor.format = format;
  return tensor;
}

kernels::ScaleView scale_view(const ScaledTensor& tensor, Use use) {
  if (tensor.format == format::Format::kE2m1) {
    TORCH_INTERNAL_ASSERT(tensor.turned == (use == Use::kTransposed));
    return fp4_scale_view(tensor);
  }
  if (!tensor.scale.defined()) return {};
  const recipe::Granularity blocks = tensor.granularity;
  kernels::ScaleView view{.data = tensor.scale.const_data_ptr(),
                          .format = tensor.scale_format,
                          .block_rows = blocks.block_rows,
                          .block_cols = blocks.block_cols,
                          .row_stride = blocks.block_rows == 0 ? 0 : blocks_in(tensor.data.size(1), blocks.block_cols),
                          .col_stride = blocks.block_cols == 0 ? 0 : 1};
  if (use == Use::kTransposed) {
    std::swap(view.block_rows, view.block_cols);
    std::swap(view.row_stride, view.col_stride);
  }
  return view;
}

at::Tensor dequantize(const ScaledTensor& tensor, at::ScalarType dtype) {
  const format::Format output_format = format_of(dtype, "dequantize");
  if (!tensor.has_codes()) return tensor.data.to(dtype);
  if (tensor.format == format::Format::kE2m1) return dequantize_fp4(tensor, dtype);
  at::Tensor output = at::empty(tensor.data.sizes(), tensor.data.options().dtype(dtype));
  const watch::Span span("dequantize", {.bytes = traffic(tensor.data, output)});
  const kernels::Dequantize args{.codes = tensor.data.const_data_ptr<uint8_t>(),
                                 .format = tensor.format,
                                 .rows = tensor.data.size(0),
                                 .cols = tensor.data.size(1),
                                 .codes_stride = tensor.data.size(1),
                                 .scale = scale_view(tensor, Use::kAsStored),
                                 .output = output.mutable_data_ptr(),
                                 .output_format = output_format,
                                 .output_stride = tensor.data.size(1)};
  on_device_of(output, [&](auto... stream) { kernels::dequantize(args, stream...); });
  return output;
}

}  // namespace plimsoll::ops
