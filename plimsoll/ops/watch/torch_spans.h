// Torch's own operators in the profile: what the framework and its autograd do beside our ops.
#pragma once

#include <ATen/record_function.h>

namespace plimsoll::ops {

// While it lives, each operator that torch runs on this thread directly inside a phase opens a watch::Span of its name
// (aten::add_), with the bytes of the tensors that it takes and gives. Inside an op's span it belongs to that op.
class TorchSpans {
 public:
  TorchSpans();
  ~TorchSpans();
  TorchSpans(const TorchSpans&) = delete;
  TorchSpans& operator=(const TorchSpans&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace plimsoll::ops
