#include "plimsoll/nn/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/second_run.h"
#include "plimsoll/ops/tensor/saved.h"

namespace plimsoll::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RandomState {
 public:
  explicit RandomState(const at::Tensor& state) : before_(generator().get_state()) { generator().set_state(state); }
  ~RandomState() { generator().set_state(before_); }
  RandomState(const RandomState&) = delete;
  RandomState& operator=(const RandomState&) = delete;

  static at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

 private:
  at::Tensor before_;
};

// State of the first run that the second run needs.
struct Recomputed {
  Segment segment;
  std::vector<at::Tensor> inputs;
  std::vector<bool> input_is_differentiable = {};
  std::vector<at::Tensor> parameters = {};
  amp::RunState state = {};
  at::Tensor random = RandomState::generator().get_state();
  amp::Snapshot autocast = {};

  void exchange(ops::SavedTensors& tensors) {
    for (at::Tensor& input : inputs) tensors.exchange(input);
  }

  // With a graph of its own, which begins at what is returned.
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> result;
    for (size_t i = 0; i < inputs.size(); ++i) {
      result.push_back(inputs[i].defined() ? inputs[i].detach().set_requires_grad(input_is_differentiable[i])
                                           : at::Tensor());
    }
    return result;
  }
};

// torch takes no undefined tensors in lists.
variable_list differentiable(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters) {
  variable_list result;
  std::ranges::copy_if(inputs, std::back_inserter(result), [](const at::Tensor& input) { return input.defined(); });
  result.insert(result.end(), parameters.begin(), parameters.end());
  return result;
}

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  static variable_list forward(AutogradContext* context, Recomputed run, at::TensorList) {
    variable_list outputs;
    {
      const at::AutoGradMode with_graph(true);  // which ends here; without one layers would compute for inference
      const amp::FirstRun first(run.state);
      for (const at::Tensor& output : run.segment(run.leaves())) outputs.push_back(output.detach());
    }
    ops::save(context, std::move(run));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Recomputed run = ops::load<Recomputed>(context);
    const std::vector<at::Tensor> leaves = run.leaves();
    variable_list outputs, output_grads, wanted;
    const at::AutoGradMode with_graph(true);
    const std::vector<at::Tensor> again = run_again(run, leaves);
    for (size_t i = 0; i < again.size(); ++i) {
      if (!grads[i].defined() || !again[i].requires_grad()) continue;
      outputs.push_back(again[i]);
      output_grads.push_back(grads[i]);
    }
    variable_list result(1);  // none for the first argument; then as differentiable() has them
    std::vector<size_t> places;
    for (const at::Tensor& tensor : differentiable(leaves, run.parameters)) {
      if (tensor.requires_grad()) {
        wanted.push_back(tensor);
        places.push_back(result.size());
      }
      result.emplace_back();
    }
    if (outputs.empty() || wanted.empty()) return result;
    const variable_list found = torch::autograd::grad(outputs, wanted, output_grads, /*retain_graph=*/std::nullopt,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) result[places[i]] = found[i];
    return result;
  }

 private:
  static std::vector<at::Tensor> run_again(const Recomputed& run, const std::vector<at::Tensor>& leaves) {
    const RandomState random(run.random);
    const amp::Autocast autocast(run.autocast);
    const amp::SecondRun second(run.state);
    return run.segment(leaves);
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  Recomputed run{.segment = segment, .inputs = inputs, .parameters = parameters};
  for (const at::Tensor& input : inputs)
    run.input_is_differentiable.push_back(input.defined() && input.requires_grad());
  const variable_list tensors = differentiable(inputs, parameters);
  return Checkpoint::apply(std::move(run), at::TensorList(tensors));
}

}  // namespace plimsoll::nn
