// Embedding on a CUDA device: the arguments' pointers are the device's. Queued on the stream.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/embedding/embedding_launch.h"

namespace plimsoll::kernels {

// A place whose token is not in 0 .. vocabulary - 1 gets NaN.
void embedding_forward(const EmbeddingForward& args, const cuda::Stream& stream);
// sorted, in place of args.tokens: those of args.shape. token_grad is 0 before: rows of tokens that occur are written. Tokens outside
// of the vocabulary have no row.
void embedding_backward(const EmbeddingBackward& args, const SortedTokens& sorted, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
