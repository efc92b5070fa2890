// Vectors of tokens and of positions: gathered in one pass, and their gradients scattered back. Same bits on every ISA
// and thread count. Any sizes >= 0. Numerics: docs/numerics.md, "embedding".
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct EmbeddingShape {
  int64_t batch = 0, seq = 0, dim = 0;
};

// output[b, s, :] = token_weight[tokens[b, s], :] + position_weight[s, :], in FP32, rounded once.
struct EmbeddingForward {
  EmbeddingShape shape;
  const int64_t* tokens = nullptr;                       // [batch, seq], each a row of token_weight
  int64_t vocabulary = 0;                                // read on a device alone; elsewhere callers check tokens
  const void* token_weight = nullptr;                    // [vocabulary, dim]
  const void* position_weight = nullptr;                 // [seq, dim], that of the first position first; optional
  format::Format weight_format = format::Format::kFp32;  // fp32, bf16, fp16
  void* output = nullptr;                                // [batch, seq, dim]
  format::Format output_format = format::Format::kFp32;
};

void embedding_forward(const EmbeddingForward& args);

// token_grad[v, :] = sum of grad[b, s, :] over the places whose token is v, position_grad[s, :] = sum over b, each in
// FP32 in the order of the places and rounded once. Each row of token_grad is written once; those of tokens that do not
// occur are 0.
struct EmbeddingBackward {
  EmbeddingShape shape;
  const int64_t* tokens = nullptr;
  const void* grad = nullptr;  // [batch, seq, dim]
  format::Format grad_format = format::Format::kFp32;
  int64_t vocabulary = 0;
  void* token_grad = nullptr;                            // [vocabulary, dim], optional
  void* position_grad = nullptr;                         // [seq, dim], optional
  format::Format weight_format = format::Format::kFp32;  // of both
};

void embedding_backward(const EmbeddingBackward& args);

}  // namespace plimsoll::kernels
