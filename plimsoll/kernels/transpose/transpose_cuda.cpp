#include "plimsoll/kernels/transpose/transpose_cuda.h"

#include "plimsoll/kernels/transpose/transpose_launch.h"

namespace plimsoll::kernels {

void transpose(const Transpose& args, const cuda::Stream& stream) {
  cuda::launch(stream, "transpose_" + std::to_string(args.element_bytes),
               transpose_launch(args, stream.multiprocessors), args);
}

}  // namespace plimsoll::kernels
