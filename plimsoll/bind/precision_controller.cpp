// plimsoll.common.recipe.Auto: a PrecisionController that Python opens scopes of.
#include "plimsoll/ops/scaling/precision_controller.h"

#include <ATen/core/grad_mode.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "plimsoll/bind/fp8_scope.h"
#include "plimsoll/bind/recipe_text.h"
#include "plimsoll/ops/scaling/precision_json.h"

namespace plimsoll::bind {
namespace {

using nlohmann::json;

struct Controller : torch::CustomClassHolder {
  explicit Controller(recipe::Automatic recipe)
      : precision(std::make_shared<ops::PrecisionController>(std::move(recipe))) {}

  // The number of the scope.
  int64_t enter(int64_t owner, const std::optional<std::string>& group, int64_t ranks, bool chosen) {
    amp::Fp8AutocastOptions options{.recipe = precision->recipe().at({}), .precision = precision};
    const int64_t number =
        enter_fp8_scope(owner, std::move(options), {.group = group, .size = ranks, .chosen = chosen});
    if (at::GradMode::is_enabled()) reduction = amp::current_scope().reduction;
    return number;
  }

  // Step that ends: the given one, or the one after the last. Later ones follow it.
  int64_t next(std::optional<int64_t> given) {
    const int64_t step = given.value_or(next_step);
    TORCH_CHECK_VALUE(step >= 0 && step < std::numeric_limits<int64_t>::max(), "recipe auto: expected step >= 0, got ",
                      step);
    return step;
  }

  // The changes, each as in the log of a run and with "step" and "line", which says it to people.
  std::string end_step(std::optional<int64_t> given, int64_t steps) {
    const int64_t step = next(given);
    TORCH_CHECK_VALUE(steps >= 0, "recipe auto: expected steps >= 0, got ", steps);
    json changes = json::array();
    for (const ops::PrecisionChange& change : precision->end_step({.step = step, .steps = steps}, reduction.get())) {
      json& line = changes.emplace_back(ops::to_json(change));
      line["step"] = change.step;
      line["line"] = ops::describe(change);
    }
    next_step = step + 1;
    return changes.dump();
  }

  void abandon_step(std::optional<int64_t> given) {
    const int64_t step = next(given);
    precision->abandon_step(step);
    next_step = step + 1;
  }

  std::string state() const {
    json state = ops::state_of(*precision);
    state["step"] = next_step;
    return state.dump();
  }

  void load_state(const std::string& text) {
    try {
      const json state = json::parse(text);
      const auto step = state.at("step").get<int64_t>();
      TORCH_CHECK_VALUE(step >= 0, "recipe auto: expected a state whose step is >= 0, got ", step);
      ops::restore(*precision, step, state);
      next_step = step;
    } catch (const json::exception& error) {
      TORCH_CHECK_VALUE(false, "recipe auto: expected a state of state_dict(), got another: ", error.what());
    }
  }

  std::string shares(bool of_last_step) const {
    return ops::shares_json(ops::formats_of(*precision),
                            of_last_step ? precision->step_multiply_adds() : precision->multiply_adds())
        .dump();
  }

  std::string products() const { return ops::products_json(ops::formats_of(*precision), precision->layers()).dump(); }

  std::shared_ptr<ops::PrecisionController> precision;
  std::shared_ptr<const ops::AmaxReduction> reduction = nullptr;  // of the last scope with gradients
  int64_t next_step = 0;
};

using ControllerPointer = c10::intrusive_ptr<Controller>;

// The recipe with every argument, and its wide format.
std::tuple<std::string, std::string> automatic_recipe(std::string_view text) {
  const recipe::Automatic automatic = automatic_of(text);
  return {recipe::to_json(automatic), automatic.ladder.back().name};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<Controller>("PrecisionController")
      .def("enter", &Controller::enter)
      .def("end_step", &Controller::end_step)
      .def("abandon_step", &Controller::abandon_step)
      .def("measures", [](const ControllerPointer& self) { return self->precision->measures(); })
      .def("state", &Controller::state)
      .def("load_state", &Controller::load_state)
      .def("shares", &Controller::shares)
      .def("products", &Controller::products);
  library.def("automatic_recipe(str recipe) -> (str recipe, str high_precision_format)", &automatic_recipe);
  library.def("precision_controller(str recipe) -> __torch__.torch.classes.plimsoll.PrecisionController",
              [](std::string_view recipe) { return c10::make_intrusive<Controller>(automatic_of(recipe)); });
}

}  // namespace plimsoll::bind
