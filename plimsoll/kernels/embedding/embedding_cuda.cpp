#include "plimsoll/kernels/embedding/embedding_cuda.h"

namespace plimsoll::kernels {

void embedding_forward(const EmbeddingForward& args, const cuda::Stream& stream) {
  cuda::launch(stream, cuda::kernel_name("embedding_forward", args.weight_format, args.output_format),
               embedding_forward_launch(args, stream.multiprocessors), args);
}

void embedding_backward(const EmbeddingBackward& args, const SortedTokens& sorted, const cuda::Stream& stream) {
  const auto queue = [&](const SortedTokens& tokens) {
    cuda::launch(stream, cuda::kernel_name("embedding_backward", args.grad_format, args.weight_format),
                 embedding_backward_launch(args, tokens, stream.multiprocessors), args, tokens);
  };
  if (args.token_grad != nullptr) queue(sorted);
  if (args.position_grad != nullptr) queue({});
}

}  // namespace plimsoll::kernels
