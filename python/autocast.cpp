// Python's `with fp8_autocast(...)` as amp::Fp8Autocast: the same scope, opened and closed by operators.
#include <torch/library.h>

#include <memory>
#include <vector>

#include "plimsoll/amp/fp8_autocast.h"
#include "python/rank_group.h"
#include "python/recipe_text.h"

namespace plimsoll::python {
namespace {

thread_local std::vector<std::unique_ptr<amp::Fp8Autocast>> scopes;

// recipe: JSON; none: high precision inside. group: the name of a process group over whose ranks amaxes are reduced.
void autocast_enter(std::optional<std::string_view> recipe, std::optional<std::string_view> group, int64_t ranks) {
  amp::Fp8AutocastOptions options{.enabled = recipe.has_value()};
  if (recipe) options.recipe = *recipe_of(*recipe);
  if (group) options.reduction = amax_reduction_over(*group, ranks);
  scopes.push_back(std::make_unique<amp::Fp8Autocast>(std::move(options)));
}

// failed: an exception left the scope, so nothing updates.
void autocast_exit(bool failed) {
  TORCH_CHECK(!scopes.empty(), "autocast_exit: expected a scope that this thread has entered, got none");
  const std::unique_ptr<amp::Fp8Autocast> scope = std::move(scopes.back());
  scopes.pop_back();
  if (failed) {
    scope->abandon();
  } else {
    scope->end();
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("autocast_enter(str? recipe, str? group=None, int ranks=1) -> ()", &autocast_enter);
  library.def("autocast_exit(bool failed) -> ()", &autocast_exit);
}

}  // namespace plimsoll::python
