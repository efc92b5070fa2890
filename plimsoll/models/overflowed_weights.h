// Weights that are finite as they are stored and infinite in the dtype that they are converted to at load.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace plimsoll::models {

// Receiver of lines that a user should read although the work goes on.
using Warn = std::function<void(const std::string&)>;

class OverflowedWeights {
 public:
  // Reads `converted`, and `stored` only where that is not finite.
  void add(const std::string& name, const at::Tensor& stored, const at::Tensor& converted);

  int64_t count() const { return count_; }
  // "3 weights are beyond fp16 and became Inf: shared.weight (2 of 4160), ...", those with the most first, no more than
  // eight names.
  std::string text() const;

 private:
  struct Tensor {
    std::string name;
    int64_t overflowed = 0, elements = 0;
  };
  std::vector<Tensor> tensors_;
  std::string dtype_;
  int64_t count_ = 0;
};

}  // namespace plimsoll::models
