// Order of what the streams of a device do with one tensor. Nothing happens for tensors on the CPU.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>

#include <optional>

namespace plimsoll::shard {

// Keeps the tensor's memory from being given to others, once it is freed, before the current stream of its device has
// done what it has to do until then.
void use_on_current_stream(const at::Tensor& tensor);

// Streams that take turns with one tensor, for code that may run on another one each time: autograd runs the backward
// pass of an operator on the stream of its forward pass.
class StreamOrder {
 public:
  // The current stream waits for what the one before has to do so far, and uses the tensor from now on.
  void take_turn(const at::Tensor& tensor);

 private:
  std::optional<c10::Stream> last_;
};

}  // namespace plimsoll::shard
