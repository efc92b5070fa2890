#include "plimsoll/kernels/activation/activation_cuda.h"

namespace plimsoll::kernels {

void activation_forward(const ActivationForward& args, const cuda::Stream& stream) {
  cuda::clear(stream, args.amax);
  cuda::launch(stream, cuda::kernel_name("activation_forward", args.x_format, args.y_format),
               activation_forward_launch(args, stream.multiprocessors), args, activation_curve(args.activation));
}

void activation_backward(const ActivationBackward& args, float* partials, const cuda::Stream& stream) {
  const ActivationCurve curve = activation_curve(args.activation);
  const int count = stream.multiprocessors;
  cuda::clear(stream, args.amax);
  cuda::launch(stream, cuda::kernel_name("activation_backward", args.x_format, args.dx_format),
               activation_backward_launch(args, count), args, curve, partials);
  cuda::launch(stream, "activation_backward_sums", activation_backward_sums_launch(args, count), args, curve, partials);
}

}  // namespace plimsoll::kernels
