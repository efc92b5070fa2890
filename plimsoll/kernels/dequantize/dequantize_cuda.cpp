#include "plimsoll/kernels/dequantize/dequantize_cuda.h"

#include "plimsoll/kernels/dequantize/dequantize_launch.h"

namespace plimsoll::kernels {

void dequantize(const Dequantize& args, const cuda::Stream& stream) {
  cuda::launch(stream, cuda::kernel_name("dequantize", args.format, args.output_format),
               dequantize_launch(args, stream.multiprocessors), args);
}

}  // namespace plimsoll::kernels
