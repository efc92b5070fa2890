// Python's `with autocast(...)` as amp::Autocast, and `with fp8_autocast(...)` as amp::Fp8Autocast.
#include "plimsoll/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/amp/precision_kernels.h"
#include "plimsoll/bind/fp8_scope.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/recipe_text.h"
#include "plimsoll/bind/scopes.h"

namespace plimsoll::bind {
namespace {

class Fp8Scope final : public Scope {
 public:
  explicit Fp8Scope(amp::Fp8AutocastOptions options) : scope_(std::make_unique<amp::Fp8Autocast>(std::move(options))) {}
  ~Fp8Scope() override { scope_->abandon(); }
  std::shared_ptr<ops::ScalingStep> leave() override { return scope_->release(); }
  bool is_fp8() const override { return true; }

 private:
  std::unique_ptr<amp::Fp8Autocast> scope_;
};

class AutocastScope final : public Scope {
 public:
  AutocastScope(at::DeviceType device, const amp::AutocastOptions& options) : scope_(device, options) {}
  void ends_before(Scope& inner) override {
    auto* const other = dynamic_cast<AutocastScope*>(&inner);
    if (other == nullptr || ended_) return;
    scope_.ends_before(other->scope_);
    ended_ = true;
  }

 private:
  amp::Autocast scope_;
  bool ended_ = false;  // the next scope inside restores what was outside
};

class PrecisionTableScope final : public Scope {
 public:
  explicit PrecisionTableScope(bool holds) : table_(holds) {}

 private:
  amp::PrecisionTableGuard table_;
};

// recipes: JSON; none: high precision inside; three: amp::RecipesByFormat.
int64_t enter_recipes(int64_t owner, const std::vector<std::string>& recipes, std::optional<std::string_view> group,
                      int64_t ranks, bool chosen) {
  TORCH_CHECK_VALUE(recipes.size() <= 1 || recipes.size() == 3,
                    "autocast: expected a recipe, or one for each of fp32, bf16 and fp16, got ", recipes.size());
  amp::Fp8AutocastOptions options{.enabled = !recipes.empty()};
  if (recipes.size() == 1) options.recipe = *recipe_of(recipes[0]);
  if (recipes.size() == 3) {
    options.by_format = std::make_shared<const amp::RecipesByFormat>(
        amp::RecipesByFormat{recipe_of(recipes[0]), recipe_of(recipes[1]), recipe_of(recipes[2])});
  }
  return enter_fp8_scope(owner, std::move(options), {.group = group, .size = ranks, .chosen = chosen});
}

void enter_autocast(int64_t owner, std::string_view device, at::ScalarType dtype, bool enabled, bool cache_enabled) {
  enter_scope(owner, std::make_unique<AutocastScope>(
                         c10::Device(std::string(device)).type(),
                         amp::AutocastOptions{.dtype = dtype, .enabled = enabled, .cache_enabled = cache_enabled}));
}

void enter_precision_table(int64_t owner, bool holds) {
  enter_scope(owner, std::make_unique<PrecisionTableScope>(holds));
}

}  // namespace

int64_t enter_fp8_scope(int64_t owner, amp::Fp8AutocastOptions options, const ReducingRanks& ranks) {
  if (ranks.group) options.reduction = amax_reduction_over(*ranks.group, ranks.size);
  const amp::Fp8Scope outer = amp::current_scope();
  TORCH_CHECK_VALUE(!ranks.chosen || !options.enabled || outer.step == nullptr || outer.reduction == options.reduction,
                    "autocast: expected the fp8_group of the outermost scope, which reduces at its end, got another");
  return enter_scope(owner, std::make_unique<Fp8Scope>(std::move(options)));
}

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("enter_fp8_scope(int owner, str[] recipes, *, str? group=None, int ranks=1, bool chosen=False) -> int",
              &enter_recipes);
  library.def("enter_autocast(int owner, str device, *, ScalarType dtype, bool enabled, bool cache_enabled) -> ()",
              &enter_autocast);
  library.def("enter_precision_table(int owner, *, bool holds) -> ()", &enter_precision_table);
  library.def("clear_autocast_cache() -> ()", &at::autocast::clear_cache);
}

}  // namespace plimsoll::bind
