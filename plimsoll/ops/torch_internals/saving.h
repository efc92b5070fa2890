// Hooks of the tensors that autograd saves, on every thread. torch.autograd.graph.saved_tensors_hooks is Python's and holds for
// one thread. The engine is asked for the hooks of each tensor, so another engine answers here. Declared alike in torch 2.11
// and 2.13.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>

namespace plimsoll::ops {

using MakeSavingHooks = std::function<std::unique_ptr<torch::autograd::SavedVariableHooks>()>;

// `make` is called for each tensor that is saved from now on. nullptr: torch's own engine again.
void set_saving_hooks(MakeSavingHooks make);

}  // namespace plimsoll::ops
