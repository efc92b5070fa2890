// Counts the bytes of the distinct storages that autograd saves while it lives, parameters left out.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/nn/module.h>

#include <memory>
#include <unordered_set>

namespace plimsoll::nn::testing {

class SavedBytes {
 public:
  explicit SavedBytes(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) seen().insert(storage_of(parameter));
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& {
      static CountingEngine engine;
      return engine;
    });
  }
  ~SavedBytes() {
    torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
    seen().clear();
    total() = 0;
  }
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  int64_t bytes() const { return total(); }

 private:
  struct Hooks : torch::autograd::SavedVariableHooks {
    at::Tensor saved;
    void call_pack_hook(const at::Tensor& tensor) override {
      saved = tensor;
      if (seen().insert(storage_of(tensor)).second) total() += static_cast<int64_t>(tensor.storage().nbytes());
    }
    at::Tensor call_unpack_hook() override { return saved; }
  };
  struct CountingEngine : torch::autograd::Engine {
    std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
      return std::make_unique<Hooks>();
    }
  };

  static const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }
  static std::unordered_set<const void*>& seen() {
    static std::unordered_set<const void*> storages;
    return storages;
  }
  static int64_t& total() {
    static int64_t count = 0;
    return count;
  }
};

}  // namespace plimsoll::nn::testing
