// Tensors that a call saw, so that the next one can tell whether what was made of them still holds.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::ops {

// Not thread-safe. Inference tensors have no version counter: whoever asks about them gets an error from torch.
class SeenTensors {
 public:
  // Whether the call before saw the same tensors, unchanged, under the same instruction set of products. Else it
  // remembers these, and no longer holds the others.
  bool see(at::TensorList tensors);
  // Keeps the memory of what was seen, so that no other tensor can stand at its address.
  void hold(at::TensorList tensors);
  void forget();

 private:
  struct Seen {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    const void* data;  // `tensor.data = other` changes it behind the version's back
    int64_t version;
  };
  std::vector<Seen> seen_;
  runtime::Isa isa_ = runtime::Isa::kPortable;
  std::vector<at::Tensor> held_;
};

}  // namespace plimsoll::ops
