#include "plimsoll/kernels/quantize/quantize_cuda.h"

#include <algorithm>
#include <iterator>

#include "plimsoll/kernels/quantize/quantize_launch.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::kernels {
namespace {

struct BlocksKernel {
  int64_t block_rows, block_cols;
  const char* name;
  Launch (*launch)(const QuantizeBlocks& args, int multiprocessors);
};
constexpr BlocksKernel kBlocksKernels[] = {{1, 0, "quantize_rows", quantize_rows_launch},
                                           {1, 32, "quantize_groups32", quantize_groups_launch},
                                           {1, 128, "quantize_groups128", quantize_groups_launch},
                                           {kColumnRows, 1, "quantize_columns", quantize_columns_launch},
                                           {kSquare, kSquare, "quantize_squares", quantize_squares_launch}};

// Whether a kernel's block covers the same elements as the asked one in a matrix of that extent; 0: all of them.
bool covers(int64_t kernel, int64_t block, int64_t extent) {
  const bool is_whole = block == 0 || block >= extent;
  return kernel == block || (is_whole && (kernel == 0 || kernel >= extent));
}

// nullptr: none for such blocks.
const BlocksKernel* blocks_kernel(const QuantizeBlocks& args) {
  const auto found = std::ranges::find_if(kBlocksKernels, [&](const BlocksKernel& kernel) {
    return covers(kernel.block_rows, args.block_rows, args.rows) &&
           covers(kernel.block_cols, args.block_cols, args.cols);
  });
  return found == std::end(kBlocksKernels) ? nullptr : found;
}

}  // namespace

void amax(const Amax& args, const cuda::Stream& stream) {
  cuda::clear(stream, args.amax);
  cuda::launch(stream, cuda::kernel_name("amax", args.x_format), amax_launch(args, stream.multiprocessors), args);
}

void set_tensor_scale(const TensorScale& args, const cuda::Stream& stream) {
  cuda::launch(stream, "tensor_scale", kTensorScaleLaunch, args);
}

void quantize_tensor(const QuantizeTensor& args, const cuda::Stream& stream) {
  cuda::clear(stream, args.amax);
  cuda::launch(stream, cuda::kernel_name("quantize_tensor", args.x_format, args.format),
               quantize_tensor_launch(args, stream.multiprocessors), args);
}

bool has_device_kernel(const QuantizeBlocks& args) { return blocks_kernel(args) != nullptr; }

void quantize_blocks(const QuantizeBlocks& args, const cuda::Stream& stream) {
  const BlocksKernel* const kernel = blocks_kernel(args);
  if (kernel == nullptr)
    runtime::unexpected("quantize: rows of a block on a device", static_cast<int>(args.block_rows));
  cuda::clear(stream, args.amax);
  cuda::launch(stream, cuda::kernel_name(kernel->name, args.x_format, args.format),
               kernel->launch(args, stream.multiprocessors), args);
}

}  // namespace plimsoll::kernels
