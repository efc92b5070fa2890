#include "plimsoll/shard/engine/unit_pass.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>

#include "plimsoll/ops/torch_internals/backward_pass.h"

namespace plimsoll::shard {

using torch::autograd::Node;
using torch::autograd::variable_list;

struct UnitPass::ExitHook : torch::autograd::FunctionPostHook {
  ExitHook(std::shared_ptr<UnitPass> of, Node* at) : pass(std::move(of)), node(at) { pass->exits_.insert(node); }
  ~ExitHook() override { pass->exits_.erase(node); }
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    pass->on_exit_(*pass);
    return outputs;
  }

  std::shared_ptr<UnitPass> pass;
  Node* node;
};

std::shared_ptr<UnitPass> UnitPass::record(ForwardPass pass, at::TensorList outputs, OnExit on_exit) {
  std::shared_ptr<UnitPass> result(new UnitPass(std::move(pass), std::move(on_exit)));
  result->find_exits(outputs);
  return result;
}

bool UnitPass::holds(const Node& node) const {
  return node.thread_id() == at::RecordFunction::currentThreadId() && pass_.nodes.holds(node.sequence_nr());
}

bool UnitPass::is_own(const Node& node) const {
  return holds(node) &&
         std::ranges::none_of(pass_.inner, [&](const NodeRange& range) { return range.holds(node.sequence_nr()); });
}

void UnitPass::find_exits(at::TensorList outputs) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> next;
  const auto visit = [&](Node* node) {
    if (node != nullptr && holds(*node) && seen.insert(node).second) next.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined()) visit(output.grad_fn().get());
  }
  while (!next.empty()) {
    Node* const node = next.back();
    next.pop_back();
    bool is_exit = false;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      Node* const to = edge.function.get();
      is_exit = is_exit || (to != nullptr && !is_own(*to));
      visit(to);
    }
    if (is_exit && is_own(*node)) node->add_post_hook(std::make_unique<ExitHook>(shared_from_this(), node));
  }
}

bool UnitPass::await_exits() {
  const auto count = std::ranges::count_if(exits_, [](Node* exit) { return ops::is_in_backward_pass(exit); });
  awaited_ += count;
  return count > 0;
}

}  // namespace plimsoll::shard
