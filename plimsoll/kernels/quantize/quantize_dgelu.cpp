#include "plimsoll/kernels/quantize/quantize_dgelu.h"

#include "plimsoll/kernels/quantize/tensor_pass.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

const void* at(const void* data, int64_t stride, format::Format format, const TileRegion& region) {
  return static_cast<const char*>(data) + (region.row * stride + region.col) * format::bytes(format);
}

}  // namespace

float quantize_dgelu(const QuantizeDgelu& args) {
  const QuantizeTileKernels& kernels = quantize_tile_kernels();
  // y exists a tile at a time. x_stride 0 keeps the pass from joining rows, which grad and pre_activation may space
  // differently.
  TensorPass pass({.x_format = format::Format::kFp32,
                   .rows = args.rows,
                   .cols = args.cols,
                   .x_stride = 0,
                   .codes = args.codes,
                   .format = args.format,
                   .codes_stride = args.codes_stride,
                   .inv_scale = args.inv_scale,
                   .transposed = args.transposed,
                   .transposed_stride = args.transposed_stride,
                   .column_sum = args.column_sum,
                   .overflow = args.overflow});
  if (const int64_t floats = pass.partial_sum_floats(); floats > 0) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    pass.set_partial_sums(static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kReduce, bytes)));
  }
  runtime::parallel_for(pass.tiles(), pass.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const TileRegion region = pass.region(tile);
      const size_t bytes = static_cast<size_t>(region.rows * region.cols) * sizeof(float);
      float* y = static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kRows, bytes));
      kernels.dgelu({.grad = at(args.grad, args.grad_stride, args.x_format, region),
                     .pre_activation = at(args.pre_activation, args.pre_activation_stride, args.x_format, region),
                     .x_format = args.x_format,
                     .rows = region.rows,
                     .cols = region.cols,
                     .grad_stride = args.grad_stride,
                     .pre_activation_stride = args.pre_activation_stride,
                     .y = y,
                     .y_stride = region.cols});
      pass.run(region, {y, format::Format::kFp32, region.cols});
    }
  });
  return pass.finish();
}

}  // namespace plimsoll::kernels
