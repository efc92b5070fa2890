// The rows of an embedding on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/embedding/embedding.h"

namespace plimsoll::kernels {

// The places whose gradients one vector sums: order[0 .. count - 1], or without an order 0, step, 2 step, ... + first.
struct Places {
  const int64_t* order = nullptr;
  int64_t first = 0, step = 0, count = 0;
};

struct EmbeddingLoops {
  // Places begin .. end - 1 of batch * seq.
  void (*gather)(const EmbeddingForward& args, int64_t begin, int64_t end);
  // Row `row` of `output`, whose format is weight_format.
  void (*sum_places)(const EmbeddingBackward& args, const Places& places, void* output, int64_t row);
};

extern const EmbeddingLoops kEmbeddingLoopsPortable, kEmbeddingLoopsAvx2, kEmbeddingLoopsAvx512;

}  // namespace plimsoll::kernels
