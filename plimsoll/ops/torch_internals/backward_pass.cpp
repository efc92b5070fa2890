#include "plimsoll/ops/torch_internals/backward_pass.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace plimsoll::ops {

int current_backward_pass() { return torch::autograd::get_current_graph_task_id(); }

void at_end_of_backward_pass(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

bool is_in_backward_pass(torch::autograd::Node* node) {
  if (is_partial_backward_pass()) {
    const auto* const needed = torch::autograd::get_current_graph_task_exec_info();
    const auto found = needed->find(node);
    return found != needed->end() && found->second.needed_;
  }
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  // The engine leaves out the node that a pass begins with.
  return (nodes != nullptr && nodes->contains(node)) || torch::autograd::get_current_node().get() == node;
}

bool is_partial_backward_pass() {
  const auto* const needed = torch::autograd::get_current_graph_task_exec_info();
  return needed != nullptr && !needed->empty();
}

}  // namespace plimsoll::ops
