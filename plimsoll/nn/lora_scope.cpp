#include "plimsoll/nn/lora_scope.h"

#include <utility>

namespace plimsoll::nn {
namespace {

thread_local const LoraSet* set_in_force = nullptr;

}  // namespace

void LoraSet::add(std::shared_ptr<const ops::LinearState> product, Lora lora) {
  const ops::LinearState* key = product.get();
  adapters_.insert_or_assign(key, Entry{std::move(product), std::move(lora)});
}

const LoraImpl* LoraSet::find(const ops::LinearState& product) const {
  const auto found = adapters_.find(&product);
  return found == adapters_.end() ? nullptr : found->second.lora.get();
}

LoraScope::LoraScope(const LoraSet* set) : outer_(std::exchange(set_in_force, set)) {}
LoraScope::~LoraScope() { set_in_force = outer_; }
const LoraSet* LoraScope::in_force() { return set_in_force; }

}  // namespace plimsoll::nn
