// Kernels on the CPU in the place of those that torch's operators have. The kernel that stood there before is called where
// ours declines; torch gives it out as a SafeKernelFunction (torch.library.get_kernel is Python's), and warns when a kernel is
// replaced, which is silenced here. Declared alike in torch 2.11 and 2.13.
#pragma once

#include <torch/library.h>

#include <functional>
#include <string>

namespace plimsoll::ops {

// Arguments of an operator's call, the last one on top; results take their place.
using CallStack = torch::jit::Stack;

// The destructor gives all operators their kernels back. No other thread may call one of the operators while kernels change.
class ReplacedKernels {
 public:
  // Returns whether it has put the results in the place of the arguments; else the arguments are as they were.
  using Attempt = std::function<bool(CallStack&)>;

  ReplacedKernels();

  // op: aten::name or aten::name.overload. Returns false where torch has no such kernel.
  bool replace(const std::string& op, Attempt attempt);

  // An operator that torch composes of others on every device. `attempt` is called before autograd, too, and its results have the
  // gradients that it gave them. Returns false where torch has no such composition.
  bool replace_composed(const std::string& op, const Attempt& attempt);

 private:
  void put(const c10::OperatorHandle& op, c10::DispatchKey key, Attempt attempt);

  torch::Library library_;
};

}  // namespace plimsoll::ops
