// State that an autograd node keeps between the passes: tensors through torch, so that its saved-tensor hooks see them
// and in-place changes are noticed; the rest as a struct.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "plimsoll/ops/tensor/scaled_tensor.h"

namespace plimsoll::ops {

// The same calls, in the same order, write the list in forward and read it in backward.
class SavedTensors {
 public:
  SavedTensors() = default;
  explicit SavedTensors(torch::autograd::variable_list list) : list_(std::move(list)), reads_(true) {}

  void exchange(at::Tensor& tensor) {
    if (reads_) {
      tensor = std::move(list_[next_++]);
    } else {
      list_.push_back(std::exchange(tensor, {}));
    }
  }
  void exchange(ScaledTensor& tensor) {
    exchange(tensor.data);
    exchange(tensor.scale);
    exchange(tensor.block_scale);
  }
  torch::autograd::variable_list take() { return std::move(list_); }

 private:
  torch::autograd::variable_list list_;
  size_t next_ = 0;
  bool reads_ = false;
};

// State must have `void exchange(SavedTensors&)` over all its tensors.
template <class State>
struct NodeState : torch::CustomClassHolder {
  explicit NodeState(State value) : state(std::move(value)) {}
  State state;
};

template <class State>
void save(torch::autograd::AutogradContext* context, State state) {
  SavedTensors tensors;
  state.exchange(tensors);
  context->save_for_backward(tensors.take());
  context->set_materialize_grads(false);
  context->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<NodeState<State>>(std::move(state)));
}

// A copy, so that a graph can be walked again if it is retained.
template <class State>
State load(torch::autograd::AutogradContext* context) {
  const auto holder = context->saved_data["state"].toCapsule();
  State state = static_cast<const NodeState<State>&>(*holder).state;
  SavedTensors tensors(context->get_saved_variables());
  state.exchange(tensors);
  return state;
}

}  // namespace plimsoll::ops
