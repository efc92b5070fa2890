#include "plimsoll/kernels/adamw/adamw_cuda.h"

#include "plimsoll/kernels/adamw/adamw_launch.h"

namespace plimsoll::kernels {

bool has_device_kernel(const AdamW& args) {
  return args.states == StateKind::kFp32 && args.master != nullptr && args.correction == nullptr;
}

void adamw(const AdamW& args, const cuda::Stream& stream) {
  float* const amax = nullptr;  // nobody asks for it
  cuda::launch(stream, cuda::kernel_name("adamw", args.grad_format), adamw_launch(args, stream.multiprocessors), args,
               adamw_coefficients(args), amax);
}

}  // namespace plimsoll::kernels
