#include "plimsoll/nn/embedding.h"

#include <ATen/ops/empty.h>

#include "plimsoll/nn/checks.h"
#include "plimsoll/nn/undrawn.h"

namespace plimsoll::nn {

EmbeddingImpl::EmbeddingImpl(int64_t row_count, int64_t width) : rows(row_count), dim(width) {
  check_size("embedding", "rows", rows, 0);
  check_size("embedding", "dim", dim, 0);
  EmbeddingImpl::reset();
}

void EmbeddingImpl::reset() {
  weight = register_parameter("weight", at::empty({rows, dim}));
  if (UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  weight.normal_();
}

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::Embedding(" << rows << ", " << dim << ")";
}

}  // namespace plimsoll::nn
