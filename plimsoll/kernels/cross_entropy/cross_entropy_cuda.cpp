#include "plimsoll/kernels/cross_entropy/cross_entropy_cuda.h"

#include "plimsoll/kernels/cross_entropy/cross_entropy_launch.h"

namespace plimsoll::kernels {

void cross_entropy(const CrossEntropy& args, const cuda::Stream& stream) {
  cuda::launch(stream, cuda::kernel_name("cross_entropy", args.format),
               cross_entropy_launch(args, stream.multiprocessors), args);
}

}  // namespace plimsoll::kernels
