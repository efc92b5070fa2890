// Memory that a forward pass keeps for its backward pass.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace plimsoll::ops {

// Counts the bytes of the distinct storages that autograd saves while the counter is alive, on whatever thread, and has
// not given up yet: activations, and copies of weights in another format. `excluded` (the parameters) are not counted.
// One counter at a time.
class SavedBytesCounter {
 public:
  explicit SavedBytesCounter(const std::vector<at::Tensor>& excluded);
  ~SavedBytesCounter();
  SavedBytesCounter(const SavedBytesCounter&) = delete;
  SavedBytesCounter& operator=(const SavedBytesCounter&) = delete;

  int64_t bytes() const;

 private:
  struct Ledger;
  class Hooks;

  std::shared_ptr<Ledger> ledger_;
};

}  // namespace plimsoll::ops
