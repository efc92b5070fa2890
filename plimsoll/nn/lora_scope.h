// Adapters that stand outside their model, so that each text may have others than the next. A model computes with those of
// the LoraScope in force.
#pragma once

#include <memory>
#include <unordered_map>

#include "plimsoll/nn/lora.h"
#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::nn {

// Adapters by the states of the products that they belong to.
class LoraSet {
 public:
  void add(std::shared_ptr<const ops::LinearState> product, Lora lora);
  const LoraImpl* find(const ops::LinearState& product) const;  // nullptr: none
  bool empty() const { return adapters_.empty(); }

 private:
  struct Entry {
    std::shared_ptr<const ops::LinearState> product;  // its address is the key, and has to stay its own
    Lora lora;
  };
  std::unordered_map<const ops::LinearState*, Entry> adapters_;
};

// While it lives, on this thread, products without adapters of their own have those of the set.
class LoraScope {
 public:
  explicit LoraScope(const LoraSet* set);  // nullptr: none
  ~LoraScope();
  LoraScope(const LoraScope&) = delete;
  LoraScope& operator=(const LoraScope&) = delete;

  static const LoraSet* in_force();

 private:
  const LoraSet* outer_;
};

}  // namespace plimsoll::nn
