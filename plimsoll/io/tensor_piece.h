// A range of a tensor: what one rank holds of it, or all of it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace plimsoll::io {

struct TensorPiece {
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0, end = 0;  // its elements that are here, in row-major order
  at::Tensor values;           // those, on the CPU, of any shape
};

// Pieces of each section of a checkpoint ("model", "optimizer") that one rank holds. A section holds a name at most
// once.
using PieceMap = std::map<std::string, std::vector<TensorPiece>>;

TensorPiece whole_piece(const std::string& name, const at::Tensor& tensor);
std::vector<TensorPiece> whole_pieces(const std::map<std::string, at::Tensor>& tensors);

// Elements of a tensor of this shape.
int64_t count_of(const std::vector<int64_t>& shape);

}  // namespace plimsoll::io
