#include "plimsoll/kernels/softmax/softmax_cuda.h"

#include "plimsoll/kernels/softmax/softmax_launch.h"

namespace plimsoll::kernels {

void softmax_forward(const SoftmaxForward& args, const cuda::Stream& stream) {
  cuda::launch(stream, cuda::kernel_name("softmax_forward", args.format),
               softmax_forward_launch(args, stream.multiprocessors), args);
}

}  // namespace plimsoll::kernels
