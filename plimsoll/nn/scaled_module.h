// Base of layers with products under a recipe: the scaling state of each product as named buffers (`input_scale`,
// `input_amax_history`, `input_step`, `weight_scale`, ...), a name in reports, and low-rank adapters as a child, `lora` or
// `fc1_lora`.
#pragma once

#include <torch/nn/cloneable.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/nn/lora.h"
#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::nn {

class ScaledLayer {
 public:
  struct Product {
    std::string prefix;  // of its buffers: "", "fc1", "fc2"
    std::shared_ptr<ops::LinearState> state;
    bool has_codes = true;  // false: in high precision under every recipe, without buffers
    Lora lora{nullptr};     // none

    // Adapters of its own, or those of the LoraScope in force; nullptr: none.
    const LoraImpl* adapters() const;
    // Whether its operands may be codes: neither the model nor a plan has it in high precision.
    bool takes_codes() const { return has_codes && !state->high_precision; }
    // The output of the product, which `layer` makes of x, with what adapters add.
    at::Tensor adapted(const at::Tensor& x, const ops::LayerOfInput& layer) const {
      const LoraImpl* added = adapters();
      return added == nullptr ? layer(x) : added->forward(x, layer);
    }
  };

  virtual ~ScaledLayer() = default;
  const std::vector<Product>& products() const { return products_; }
  bool has_lora() const;  // in force

  // Adapters of the product of this prefix, which has codes and no adapters. A layer with adapters computes op by op.
  virtual void add_lora(const std::string& prefix, Lora lora) = 0;
  virtual void remove_lora(const std::string& prefix) = 0;

 protected:
  // A reset() begins with it. The products that it adds have the names, the held codes and the shapes of the adapters of
  // those that were there before, so that a clone is what its original is.
  void restart_products();
  std::shared_ptr<ops::LinearState> add_product(const std::string& prefix, bool has_codes);
  Product& product(const std::string& prefix);
  // New adapters of the shape that those of the product had; empty where it had none.
  Lora lora_as_before(const std::string& prefix) const;

  std::vector<Product> products_;

 private:
  struct Before {
    std::string name = {};
    bool high_precision = false;
    std::shared_ptr<ops::HeldWeight> held = {};
    Lora lora{nullptr};
  };
  std::map<std::string, Before> before_;  // by prefix
};

template <class Derived>
class ScaledModule : public torch::nn::Cloneable<Derived>, public ScaledLayer {
 public:
  using torch::nn::Cloneable<Derived>::to;

  // Parameters change their dtype; the scaling state is fp32 and int64 whatever theirs is.
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    for (at::Tensor& parameter : this->parameters(/*recurse=*/false)) {
      parameter.set_data(parameter.to(dtype, non_blocking));
    }
  }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    this->to(device, non_blocking);
    this->to(dtype, non_blocking);
  }

  void add_lora(const std::string& prefix, Lora lora) override {
    Product& adapted = product(prefix);
    TORCH_CHECK(adapted.has_codes && adapted.lora.is_empty(),
                "lora: expected a product under the recipe without adapters");
    lora->train(this->is_training());
    adapted.lora = this->register_module(lora_name(prefix), std::move(lora));
  }
  void remove_lora(const std::string& prefix) override {
    this->unregister_module(lora_name(prefix));
    product(prefix).lora = nullptr;
  }

 protected:
  // Called by reset(), after restart_products().
  std::shared_ptr<ops::LinearState> register_product(const std::string& prefix = {}) {
    auto state = add_product(prefix, /*has_codes=*/true);
    for (const recipe::Role role : {recipe::Role::kInput, recipe::Role::kWeight, recipe::Role::kGradOutput}) {
      ops::OperandSlot& slot = state->slot(role);
      const std::string name = (prefix.empty() ? prefix : prefix + "_") + std::string(ops::role_name(role));
      this->register_buffer(name + "_scale", slot.scale);
      this->register_buffer(name + "_amax_history", slot.amax_history);
      this->register_buffer(name + "_step", slot.step);
    }
    if (Lora lora = lora_as_before(prefix); !lora.is_empty()) add_lora(prefix, std::move(lora));
    return state;
  }

 private:
  static std::string lora_name(const std::string& prefix) { return prefix.empty() ? "lora" : prefix + "_lora"; }
};

// Puts a saved buffer of a layer in the place of `buffer`, whose dtype it must have. A history may have any length, all
// else has the shape that it has. Throws c10::ValueError otherwise.
void load_buffer(const std::string& name, at::Tensor buffer, const at::Tensor& saved);

// Names every product under `root` for reports by its path: "blocks.0.layernorm_mlp.fc1".
void name_products(const torch::nn::Module& root, const std::string& path = {});

// The products of these names never have codes from here on, whatever the recipe. A c10::ValueError for a name that no
// product under `root` has which would have them.
void keep_in_high_precision(const torch::nn::Module& root, std::span<const std::string> names);
// The same of all products under `root`.
void keep_in_high_precision(const torch::nn::Module& root);

// Every slot under `root`, in one order: what ops::AmaxReduction asks for.
std::vector<ops::SharedSlot> operand_slots(const torch::nn::Module& root);

}  // namespace plimsoll::nn
