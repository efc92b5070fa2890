#include "plimsoll/nn/scaled_module.h"

#include <algorithm>

#include "plimsoll/nn/lora_scope.h"

namespace plimsoll::nn {
namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() || name.empty() ? path + name : path + "." + name;
}

void append_slots(const torch::nn::Module& module, std::vector<ops::SharedSlot>& slots) {
  if (const auto* layer = dynamic_cast<const ScaledLayer*>(&module)) {
    for (const ScaledLayer::Product& product : layer->products()) {
      if (!product.has_codes) continue;
      for (const recipe::Role role : {recipe::Role::kInput, recipe::Role::kWeight, recipe::Role::kGradOutput}) {
        slots.emplace_back(product.state, &product.state->slot(role));
      }
    }
  }
  for (const auto& child : module.children()) append_slots(*child, slots);
}

void add_states(const torch::nn::Module& module, std::map<std::string, std::shared_ptr<ops::LinearState>>& states) {
  if (const auto* layer = dynamic_cast<const ScaledLayer*>(&module)) {
    for (const ScaledLayer::Product& product : layer->products()) {
      if (product.has_codes) states.emplace(product.state->name, product.state);
    }
  }
  for (const auto& child : module.children()) add_states(*child, states);
}

}  // namespace

void ScaledLayer::restart_products() {
  before_.clear();
  for (const Product& each : products_) {
    before_[each.prefix] = {.name = each.state->name,
                            .high_precision = each.state->high_precision,
                            .held = each.state->weight_source.held(),
                            .lora = each.lora};
  }
  products_.clear();
}

bool ScaledLayer::has_lora() const {
  return std::any_of(products_.begin(), products_.end(),
                     [](const Product& each) { return each.adapters() != nullptr; });
}

const LoraImpl* ScaledLayer::Product::adapters() const {
  if (!lora.is_empty()) return lora.get();
  const LoraSet* set = LoraScope::in_force();
  return set == nullptr ? nullptr : set->find(*state);
}

ScaledLayer::Product& ScaledLayer::product(const std::string& prefix) {
  const auto found =
      std::find_if(products_.begin(), products_.end(), [&](const Product& each) { return each.prefix == prefix; });
  TORCH_INTERNAL_ASSERT(found != products_.end());
  return *found;
}

Lora ScaledLayer::lora_as_before(const std::string& prefix) const {
  const auto found = before_.find(prefix);
  if (found == before_.end() || found->second.lora.is_empty()) return nullptr;
  const LoraImpl& before = *found->second.lora;
  return Lora(before.in_features, before.parts, before.options);
}

std::shared_ptr<ops::LinearState> ScaledLayer::add_product(const std::string& prefix, bool has_codes) {
  const Before& before = before_[prefix];
  auto state = std::make_shared<ops::LinearState>(before.name);
  state->high_precision = before.high_precision;
  state->weight_source.hold(before.held);
  products_.push_back({.prefix = prefix, .state = state, .has_codes = has_codes});
  return state;
}

void load_buffer(const std::string& name, at::Tensor buffer, const at::Tensor& saved) {
  const bool is_history = name.ends_with("_amax_history");
  const bool fits = is_history ? saved.dim() == 1 && saved.numel() >= 1 : saved.sizes() == buffer.sizes();
  TORCH_CHECK_VALUE(fits && saved.scalar_type() == buffer.scalar_type(), "load: expected '", name, "' of ",
                    buffer.scalar_type(), is_history ? " with one dimension, got " : " as before, got ",
                    saved.scalar_type(), " ", saved.sizes());
  buffer.set_data(saved.clone());
}

void name_products(const torch::nn::Module& root, const std::string& path) {
  if (const auto* layer = dynamic_cast<const ScaledLayer*>(&root)) {
    for (const ScaledLayer::Product& product : layer->products()) product.state->name = join(path, product.prefix);
  }
  for (const auto& child : root.named_children()) name_products(*child.value(), join(path, child.key()));
}

void keep_in_high_precision(const torch::nn::Module& root, std::span<const std::string> names) {
  std::map<std::string, std::shared_ptr<ops::LinearState>> states;
  add_states(root, states);
  for (const std::string& name : names) {
    const auto found = states.find(name);
    TORCH_CHECK_VALUE(found != states.end(),
                      "plan: expected the name of a product in FP8, as an audit lists them, got '", name, "'");
    found->second->high_precision = true;
  }
}

void keep_in_high_precision(const torch::nn::Module& root) {
  if (const auto* layer = dynamic_cast<const ScaledLayer*>(&root)) {
    for (const ScaledLayer::Product& product : layer->products()) product.state->high_precision = true;
  }
  for (const auto& child : root.children()) keep_in_high_precision(*child);
}

std::vector<ops::SharedSlot> operand_slots(const torch::nn::Module& root) {
  std::vector<ops::SharedSlot> slots;
  append_slots(root, slots);
  return slots;
}

}  // namespace plimsoll::nn
