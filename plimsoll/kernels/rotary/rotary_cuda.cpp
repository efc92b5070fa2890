#include "plimsoll/kernels/rotary/rotary_cuda.h"

#include "plimsoll/kernels/rotary/rotary_launch.h"

namespace plimsoll::kernels {

void rotary(const Rotary& args, const cuda::Stream& stream) {
  cuda::launch(stream, cuda::kernel_name("rotary", args.format), rotary_launch(args, stream.multiprocessors), args);
}

}  // namespace plimsoll::kernels
