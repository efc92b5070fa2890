// Tensors that a call saw, so that the next one can tell whether what was made of them still holds.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::ops {

// A write that torch does not count is seen on the CPU alone, and there where it changes one of 64 values spread over the
// tensor: of those that change a tenth of all values, nearly all. Not thread-safe. Inference tensors have no version
// counter: whoever asks about them gets an error from torch.
class SeenTensors {
 public:
  // Whether the call before saw the same tensors, unchanged, under the same instruction set of products. Else it
  // remembers these, and no longer holds the others.
  bool see(at::TensorList tensors);
  // Whether they are those that it remembers, as far as torch counts writes; for calls that follow one which asked see().
  bool remembers(at::TensorList tensors) const;
  // Keeps the memory of what was seen, so that no other tensor can stand at its address.
  void hold(at::TensorList tensors);
  void forget();

 private:
  struct Seen {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    const void* data;  // `tensor.data = other` changes it behind the version's back
    int64_t version;
    uint64_t sample;  // of its values: writes through `tensor.data` or NumPy move no version
  };
  std::vector<Seen> seen_;
  runtime::Isa isa_ = runtime::Isa::kPortable;
  std::vector<at::Tensor> held_;
};

}  // namespace plimsoll::ops
