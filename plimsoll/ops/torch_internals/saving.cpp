#include "plimsoll/ops/torch_internals/saving.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace plimsoll::ops {
namespace {

namespace autograd = torch::autograd;

MakeSavingHooks& hooks_in_force() {
  static MakeSavingHooks hooks;
  return hooks;
}

class AskingEngine final : public autograd::Engine {
 public:
  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return hooks_in_force() ? hooks_in_force()() : nullptr;
  }
  static autograd::Engine& instance() {
    static AskingEngine engine;
    return engine;
  }
};

}  // namespace

void set_saving_hooks(MakeSavingHooks make) {
  const bool asks = make != nullptr;
  if (asks) hooks_in_force() = std::move(make);
  autograd::set_default_engine_stub(asks ? &AskingEngine::instance : &autograd::Engine::get_base_engine);
  if (!asks) hooks_in_force() = nullptr;
}

}  // namespace plimsoll::ops
