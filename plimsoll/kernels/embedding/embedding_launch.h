// Kernels of embedding.cu and how they are launched. embedding_forward_W_O has W, the format of the weights, and O, that of the
// output, in its name, and takes the arguments of embedding.h, whose pointers are the device's. A place whose token is no row of
// token_weight gets NaN.
//
// embedding_backward_G_W has the format of grad and that of the gradients. It takes the arguments and a SortedTokens: with one it
// writes the rows of token_grad whose tokens occur, and the others are 0 before; without one (nullptr) position_grad.
#pragma once

#include "plimsoll/kernels/cuda/row_launch.h"
#include "plimsoll/kernels/embedding/embedding.h"

namespace plimsoll::kernels {

// The tokens in ascending order and their places [batch * seq], those of one token in ascending order.
struct SortedTokens {
  const int64_t* tokens = nullptr;
  const int64_t* places = nullptr;
};

inline constexpr int kEmbeddingThreads = 256, kEmbeddingBlocks = 6;
inline constexpr int kEmbeddingGradientThreads = 128, kEmbeddingGradientBlocks = 6;

// Elements of a thread: 16 bytes of the wider format.
PLIMSOLL_HD constexpr int embedding_run(format::Format weight, format::Format output) {
  return weight == format::Format::kFp32 || output == format::Format::kFp32 ? 4 : 8;
}
// Backward few, so that a token of many places, whose rows are added one after another, has many threads.
inline constexpr int kEmbeddingGradientRun = 4;

constexpr Launch embedding_forward_launch(const EmbeddingForward& args, int multiprocessors) {
  const int run = embedding_run(args.weight_format, args.output_format);
  return row_launch(args.shape.batch * args.shape.seq, pieces_of(args.shape.dim, run), kEmbeddingThreads,
                    multiprocessors, kEmbeddingBlocks);
}

// Threads look at every place; those of a token's first one sum.
constexpr Launch embedding_backward_launch(const EmbeddingBackward& args, const SortedTokens& sorted,
                                           int multiprocessors) {
  const int64_t rows = sorted.tokens != nullptr ? args.shape.batch * args.shape.seq : args.shape.seq;
  return row_launch(rows, pieces_of(args.shape.dim, kEmbeddingGradientRun), kEmbeddingGradientThreads, multiprocessors,
                    kEmbeddingGradientBlocks);
}

}  // namespace plimsoll::kernels
