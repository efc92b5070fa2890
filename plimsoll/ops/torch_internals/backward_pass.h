// The backward pass that this thread runs a part of. torch's public API, in Python too, tells neither which pass that is nor
// when it ends; torch's own data parallelism asks the engine, as these functions do. Declared alike in torch 2.11 and 2.13.
#pragma once

#include <functional>

namespace torch::autograd {
struct Node;
}

namespace plimsoll::ops {

// The number of that pass: a pass inside another has one of its own.
inline constexpr int kNoBackwardPass = -1;
int current_backward_pass();

// Called when it has run all its nodes, on the thread that began it; a pass that an exception ends drops it. Throws outside
// of a backward pass.
void at_end_of_backward_pass(std::function<void()> callback);

// Whether it runs the node.
bool is_in_backward_pass(torch::autograd::Node* node);

// Whether it is for gradients of some tensors alone: torch.autograd.grad, or backward() with `inputs`.
bool is_partial_backward_pass();

}  // namespace plimsoll::ops
