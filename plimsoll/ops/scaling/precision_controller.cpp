#include "plimsoll/ops/scaling/precision_controller.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include "plimsoll/ops/scaling/operand_readings.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

using recipe::Decision;
using recipe::GemmKind;
using recipe::Reason;
using recipe::Role;

constexpr std::array kRoles = {Role::kInput, Role::kWeight, Role::kGradOutput};

size_t index(GemmKind gemm) { return static_cast<size_t>(gemm); }
size_t index(Role role) { return static_cast<size_t>(role); }

std::string rounded(double value) {
  std::ostringstream text;
  text << std::setprecision(3) << value;
  return text.str();
}

std::string why(const Decision& decision) {
  const std::string_view role = role_name(decision.role);
  switch (decision.reason) {
    case Reason::kNotFinite:
      return c10::str(role, " is not finite");
    case Reason::kError:
      return c10::str("error of ", role, " ", rounded(decision.error), " above ", rounded(decision.bound));
    case Reason::kFlushed:
      return c10::str("share of ", role, " that became zero ", rounded(decision.error), " above ",
                      rounded(decision.bound));
    case Reason::kGradient:
      return c10::str("|q(g) - g| / |g| ", rounded(decision.error), " above ", rounded(decision.bound));
    case Reason::kQuiet:
      return c10::str("quiet, mean load ", rounded(decision.error), " below ", rounded(decision.bound));
  }
  runtime::unexpected("precision: reason", static_cast<int>(decision.reason));
}

const void* scale_of(const OperandSlot& grad_output) { return grad_output.scale.unsafeGetTensorImpl(); }

}  // namespace

std::string_view name_of(GemmKind gemm) {
  switch (gemm) {
    case GemmKind::kOutput:
      return "output";
    case GemmKind::kGradInput:
      return "grad_input";
    case GemmKind::kGradWeight:
      return "grad_weight";
  }
  runtime::unexpected("precision: product", static_cast<int>(gemm));
}

std::string describe(const PrecisionChange& change) {
  return c10::str(change.layer, " ", name_of(change.gemm), ": ", change.from, " -> ", change.to, " after step ",
                  change.step + 1, ", ", why(change.decision));
}

PrecisionController::PrecisionController(recipe::Automatic recipe)
    : recipe_(std::move(recipe)), step_multiply_adds_(recipe_.ladder.size()), multiply_adds_(recipe_.ladder.size()) {
  choose_measured(0);
}

const std::string& PrecisionController::format_of(const recipe::ProductState& state) const {
  return recipe_.ladder.at(static_cast<size_t>(state.rung)).name;
}

PrecisionController::Layer* PrecisionController::find(const OperandSlot& grad_output) {
  const auto found = by_scale_.find(scale_of(grad_output));
  return found == by_scale_.end() ? nullptr : found->second;
}

const PrecisionController::Layer* PrecisionController::find(const OperandSlot& grad_output) const {
  const auto found = by_scale_.find(scale_of(grad_output));
  return found == by_scale_.end() ? nullptr : found->second;
}

// A slot may get another scale tensor, and the memory of the one before become another layer's.
void PrecisionController::follow(Layer& layer) {
  const void* const now = scale_of(*layer.slots[index(Role::kGradOutput)]);
  Layer*& owner = by_scale_[now];
  if (owner == &layer) return;
  owner = &layer;
  const auto before = by_scale_.find(layer.scale);
  if (before != by_scale_.end() && before->second == &layer) by_scale_.erase(before);
  layer.scale = now;
}

std::string PrecisionController::free_name(const std::string& name) const {
  const std::string path = name.empty() ? c10::str("layer ", layers_.size()) : name;
  std::string free = path;
  for (int64_t number = 2; by_name_.contains(free); ++number) free = c10::str(path, "#", number);
  return free;
}

SharedRecipe PrecisionController::recipe_at(const LayerPrecision& layer) {
  recipe::ProductRungs rungs;
  int64_t key = 0;
  for (const GemmKind gemm : recipe::kGemmKinds) {
    rungs.of(gemm) = layer.products[index(gemm)].state.rung;
    key = key * static_cast<int64_t>(recipe_.ladder.size()) + rungs.of(gemm);
  }
  SharedRecipe& made = recipes_[key];
  if (made == nullptr) made = std::make_shared<const recipe::Recipe>(recipe_.at(rungs));
  return made;
}

SharedRecipe PrecisionController::recipe_for(const std::string& name, const LayerSlots& slots) {
  const std::lock_guard lock(mutex_);
  const OperandSlot* const grad_output = slots[index(Role::kGradOutput)].get();
  if (const auto known = by_slot_.find(grad_output); known != by_slot_.end()) {
    follow(*known->second);
    return known->second->recipe;
  }
  const std::string path = free_name(name);
  Layer& layer = *layers_.emplace_back(std::make_unique<Layer>());
  by_name_.emplace(path, &layer);
  const auto restored = restored_.find(path);
  layer.precision.layer = path;
  if (restored != restored_.end()) {
    layer.precision = restored->second;
    restored_.erase(restored);
  }
  layer.slots = slots;
  layer.recipe = recipe_at(layer.precision);
  by_slot_.emplace(grad_output, &layer);
  follow(layer);
  return layer.recipe;
}

const LayerPrecision& PrecisionController::precision_of(const std::string& name) const {
  static const LayerPrecision unknown;
  if (const auto called = by_name_.find(name); called != by_name_.end()) return called->second->precision;
  const auto restored = restored_.find(name);
  return restored == restored_.end() ? unknown : restored->second;
}

SharedRecipe PrecisionController::evaluation_recipe_for(const std::string& name, const OperandSlot& grad_output) {
  const std::lock_guard lock(mutex_);
  const auto known = by_slot_.find(&grad_output);
  if (known == by_slot_.end()) return recipe_at(precision_of(name));
  follow(*known->second);
  return known->second->recipe;
}

std::string PrecisionController::reason_for(const std::string& name, const OperandSlot& grad_output,
                                            GemmKind gemm) const {
  const std::lock_guard lock(mutex_);
  const Layer* const layer = find(grad_output);
  const ProductPrecision& product = (layer != nullptr ? layer->precision : precision_of(name)).products[index(gemm)];
  if (!product.last) return c10::str(format_of(product.state), " from the first step on");
  return c10::str(format_of(product.state), " after step ", product.state.last_change + 1, ": ", why(*product.last));
}

void PrecisionController::see(const OperandSlot& grad_output, OperandCost cost) {
  const std::lock_guard lock(mutex_);
  if (Layer* const layer = find(grad_output)) layer->costs.push_back(std::move(cost));
}

void PrecisionController::count(const OperandSlot& grad_output, GemmKind gemm, double multiply_adds) {
  const std::lock_guard lock(mutex_);
  if (Layer* const layer = find(grad_output)) layer->multiply_adds[index(gemm)] += multiply_adds;
}

void PrecisionController::abandon_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  for (const auto& layer : layers_) {
    layer->costs.clear();
    layer->multiply_adds = {};
  }
  choose_measured(step + 1);
}

// A scale that no product has used for a while says nothing about the operand of now.
void PrecisionController::start_slots_anew(Layer& layer, GemmKind moved) const {
  for (const Role role : kRoles) {
    if (!recipe::takes_part(role, moved)) continue;
    const bool is_used = std::ranges::any_of(recipe::kGemmKinds, [&](GemmKind gemm) {
      return recipe::takes_part(role, gemm) && layer.multiply_adds[index(gemm)] > 0 &&
             layer.recipe->operand(role, gemm).source == recipe::ScaleSource::kDelayed;
    });
    if (is_used) continue;
    OperandSlot& slot = *layer.slots[index(role)];
    const at::NoGradGuard no_grad;
    slot.scale.zero_();
    slot.amax_history.zero_();
  }
}

void PrecisionController::choose_measured(int64_t next_step) {
  const auto asks = [this](const std::unique_ptr<Layer>& layer) {
    return std::ranges::any_of(layer->precision.products, [this](const ProductPrecision& product) {
      return recipe::asks_for_next(recipe_, product.state);
    });
  };
  const auto restored_asks = [this](const auto& named) {
    return std::ranges::any_of(named.second.products, [this](const ProductPrecision& product) {
      return recipe::asks_for_next(recipe_, product.state);
    });
  };
  measures_ = recipe::measures(recipe_.limits, next_step) || std::ranges::any_of(layers_, asks) ||
              std::ranges::any_of(restored_, restored_asks);
}

std::vector<PrecisionChange> PrecisionController::end_step(const recipe::Clock& clock, const AmaxReduction* reduction) {
  const std::lock_guard lock(mutex_);
  std::vector<const std::vector<OperandCost>*> costs;
  for (const auto& layer : layers_) costs.push_back(&layer->costs);
  std::vector<LayerReadings> readings = read_costs(recipe_, costs);
  if (reduction != nullptr) reduce(*reduction, readings);
  std::vector<PrecisionChange> changes;
  step_multiply_adds_.assign(recipe_.ladder.size(), 0);
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = *layers_[i];
    const size_t before = changes.size();
    for (const GemmKind gemm : recipe::kGemmKinds) {
      ProductPrecision& product = layer.precision.products[index(gemm)];
      product.multiply_adds = layer.multiply_adds[index(gemm)];
      if (product.multiply_adds == 0) continue;  // frozen, or not called
      step_multiply_adds_[static_cast<size_t>(product.state.rung)] += product.multiply_adds;
      const auto decision =
          recipe::decide(recipe_, clock, readings[i].measurement(gemm, product.state.rung), product.state);
      if (!decision) continue;
      product.last = decision;
      const auto name = [&](int64_t rung) { return recipe_.ladder[static_cast<size_t>(rung)].name; };
      changes.push_back({layer.precision.layer, gemm, clock.step, name(decision->from), name(decision->to), *decision});
      if (recipe_.ladder[static_cast<size_t>(decision->to)].recipe.delayed() != nullptr) start_slots_anew(layer, gemm);
    }
    if (changes.size() > before) layer.recipe = recipe_at(layer.precision);
    layer.costs.clear();
    layer.multiply_adds = {};
  }
  for (size_t rung = 0; rung < multiply_adds_.size(); ++rung) multiply_adds_[rung] += step_multiply_adds_[rung];
  choose_measured(clock.step + 1);
  return changes;
}

std::vector<LayerPrecision> PrecisionController::layers() const {
  const std::lock_guard lock(mutex_);
  std::vector<LayerPrecision> result;
  for (const auto& layer : layers_) result.push_back(layer->precision);
  // Restored ones that have not been called since, by name.
  const auto called = static_cast<std::ptrdiff_t>(result.size());
  for (const auto& named : restored_) result.push_back(named.second);
  std::ranges::sort(result.begin() + called, result.end(), {}, &LayerPrecision::layer);
  return result;
}

void PrecisionController::restore(int64_t next_step, const std::vector<LayerPrecision>& layers,
                                  std::vector<double> multiply_adds) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_VALUE(multiply_adds.size() == recipe_.ladder.size(), "precision: expected multiply-adds of ",
                    recipe_.ladder.size(), " formats, got ", multiply_adds.size());
  std::unordered_map<std::string, LayerPrecision> restored;
  for (const LayerPrecision& layer : layers) {
    for (const ProductPrecision& product : layer.products) {
      TORCH_CHECK_VALUE(product.state.rung >= 0 && product.state.rung <= recipe_.last_rung(),
                        "precision: expected a rung in [0, ", recipe_.last_rung(), "], got ", product.state.rung);
    }
    TORCH_CHECK_VALUE(restored.emplace(layer.layer, layer).second, "precision: expected each layer once, got ",
                      layer.layer, " twice");
  }
  restored_ = std::move(restored);
  layers_.clear();
  by_slot_.clear();
  by_scale_.clear();
  by_name_.clear();
  multiply_adds_ = std::move(multiply_adds);
  choose_measured(next_step);
}

}  // namespace plimsoll::ops
