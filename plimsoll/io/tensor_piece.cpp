#include "plimsoll/io/tensor_piece.h"

#include <functional>
#include <numeric>

namespace plimsoll::io {

TensorPiece whole_piece(const std::string& name, const at::Tensor& tensor) {
  return {.name = name, .shape = tensor.sizes().vec(), .begin = 0, .end = tensor.numel(), .values = tensor};
}

std::vector<TensorPiece> whole_pieces(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<TensorPiece> pieces;
  for (const auto& [name, tensor] : tensors) pieces.push_back(whole_piece(name, tensor));
  return pieces;
}

int64_t count_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace plimsoll::io
