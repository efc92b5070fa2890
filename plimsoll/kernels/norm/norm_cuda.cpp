#include "plimsoll/kernels/norm/norm_cuda.h"

namespace plimsoll::kernels {

void norm_forward(const NormForward& args, const cuda::Stream& stream) {
  cuda::clear(stream, args.amax);
  cuda::launch(stream, cuda::kernel_name("norm_forward", args.x_format, args.y_format),
               norm_forward_launch(args, stream.multiprocessors), args);
}

void norm_backward(const NormBackwardSums& sums, const cuda::Stream& stream) {
  const NormBackward& args = sums.args;
  const int count = stream.multiprocessors;
  cuda::launch(stream, cuda::kernel_name("norm_backward", args.x_format), norm_backward_launch(args, count), args);
  cuda::launch(stream, cuda::kernel_name("norm_backward_partials", args.x_format),
               norm_backward_partials_launch(sums, count), sums);
  cuda::launch(stream, "norm_backward_sums", norm_backward_sums_launch(sums, count), sums);
}

}  // namespace plimsoll::kernels
