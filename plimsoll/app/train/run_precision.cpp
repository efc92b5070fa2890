#include "plimsoll/app/train/run_precision.h"

#include <array>
#include <numeric>

#include "plimsoll/app/error.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;
using recipe::GemmKind;

constexpr std::array kGemms = {GemmKind::kOutput, GemmKind::kGradInput, GemmKind::kGradWeight};

// Calls visit(name, member) for each member of a product's state.
void members(auto& state, auto&& visit) {
  visit("rung", state.rung);
  visit("votes", state.votes);
  visit("mean_error", state.mean_error);
  visit("mean_load", state.mean_load);
  visit("saturated", state.saturated);
  visit("flushed", state.flushed);
  visit("headroom_bits", state.headroom_bits);
  visit("measured", state.measured);
  visit("last_vote", state.last_vote);
  visit("last_change", state.last_change);
  visit("last_demotion", state.last_demotion);
}

void members_of_decision(auto& decision, auto&& visit) {
  visit("from", decision.from);
  visit("to", decision.to);
  visit("error", decision.error);
  visit("bound", decision.bound);
}

json to_json(const ops::ProductPrecision& product) {
  json state;
  members(product.state, [&](const char* name, const auto& value) { state[name] = value; });
  state["multiply_adds"] = product.multiply_adds;
  if (!product.last) return state;
  json last = {{"reason", static_cast<int>(product.last->reason)}, {"role", static_cast<int>(product.last->role)}};
  members_of_decision(*product.last, [&](const char* name, const auto& value) { last[name] = value; });
  state["last"] = std::move(last);
  return state;
}

ops::ProductPrecision product_of(const json& state) {
  ops::ProductPrecision product;
  members(product.state, [&](const char* name, auto& value) { state.at(name).get_to(value); });
  state.at("multiply_adds").get_to(product.multiply_adds);
  if (!state.contains("last")) return product;
  const json& last = state.at("last");
  recipe::Decision& decision = product.last.emplace();
  members_of_decision(decision, [&](const char* name, auto& value) { last.at(name).get_to(value); });
  decision.reason = static_cast<recipe::Reason>(last.at("reason").get<int>());
  decision.role = static_cast<recipe::Role>(last.at("role").get<int>());
  return product;
}

json products_json(const StepPrecision& precision) {
  json products = json::object();
  for (const ops::LayerPrecision& layer : precision.layers) {
    for (const GemmKind gemm : kGemms) {
      const ops::ProductPrecision& product = layer.products[static_cast<size_t>(gemm)];
      if (product.multiply_adds == 0) continue;
      const recipe::ProductState& state = product.state;
      products[layer.layer + "/" + std::string(ops::name_of(gemm))] = {
          {"format", precision.formats[static_cast<size_t>(state.rung)]},
          {"multiply_adds", product.multiply_adds},
          {"mean_error", state.mean_error},
          {"load", state.mean_load},
          {"saturated", state.saturated},
          {"flushed", state.flushed},
          {"headroom_bits", state.headroom_bits}};
    }
  }
  return products;
}

json to_json(const ops::PrecisionChange& change) {
  return {{"layer", change.layer},
          {"product", ops::name_of(change.gemm)},
          {"from", change.from},
          {"to", change.to},
          {"reason", recipe::name(change.decision.reason)},
          {"operand", ops::role_name(change.decision.role)},
          {"error", change.decision.error},
          {"bound", change.decision.bound}};
}

}  // namespace

std::shared_ptr<ops::PrecisionController> make_precision(const TrainOptions& options) {
  if (!options.recipe.automatic) return nullptr;
  if (options.shard == shard::Sharing::kFsdp) {
    refuse("--recipe {}: expected weights that are whole on each rank, got --shard fsdp, which sends them as codes",
           options.recipe.text);
  }
  return std::make_shared<ops::PrecisionController>(*options.recipe.automatic);
}

json state_of(const ops::PrecisionController& precision) {
  json layers = json::array();
  for (const ops::LayerPrecision& layer : precision.layers()) {
    json products = json::array();
    for (const ops::ProductPrecision& product : layer.products) products.push_back(to_json(product));
    layers.push_back({{"layer", layer.layer}, {"products", std::move(products)}});
  }
  return {{"layers", std::move(layers)}, {"multiply_adds", precision.multiply_adds()}};
}

void restore(ops::PrecisionController& precision, int64_t next_step, const json& state) {
  try {
    std::vector<ops::LayerPrecision> layers;
    for (const json& saved : state.at("layers")) {
      ops::LayerPrecision& layer = layers.emplace_back();
      saved.at("layer").get_to(layer.layer);
      for (size_t i = 0; i < layer.products.size(); ++i) layer.products[i] = product_of(saved.at("products").at(i));
    }
    precision.restore(next_step, layers, state.at("multiply_adds").get<std::vector<double>>());
  } catch (const json::exception&) {
    fail("checkpoint: expected the formats of recipe auto in state.json, got {}", state.is_null() ? "none" : "others");
  }
}

json shares_json(const std::vector<std::string>& formats, const std::vector<double>& multiply_adds) {
  const double all = std::accumulate(multiply_adds.begin(), multiply_adds.end(), 0.0);
  json shares = json::array();
  for (const double part : multiply_adds) shares.push_back(all > 0 ? part / all : 0);
  return {{"formats", formats}, {"share", std::move(shares)}};
}

std::vector<std::string> formats_of(const ops::PrecisionController& precision) {
  std::vector<std::string> formats;
  for (const recipe::Rung& rung : precision.recipe().ladder) formats.push_back(rung.name);
  return formats;
}

json to_json(const StepPrecision& precision) {
  json line = shares_json(precision.formats, precision.multiply_adds);
  for (const ops::PrecisionChange& change : precision.changes) line["changes"].push_back(to_json(change));
  if (!precision.layers.empty()) line["products"] = products_json(precision);
  return line;
}

}  // namespace plimsoll::app
