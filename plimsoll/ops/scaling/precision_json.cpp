#include "plimsoll/ops/scaling/precision_json.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace plimsoll::ops {
namespace {

using nlohmann::json;
using recipe::GemmKind;
using recipe::Reason;
using recipe::Role;

// Calls visit(name, member) for each member of a product's state but its two records.
void members(auto& state, auto&& visit) {
  visit("rung", state.rung);
  visit("last_change", state.last_change);
  visit("last_demotion", state.last_demotion);
}

void members_of_record(auto& record, auto&& visit) {
  visit("votes", record.votes);
  visit("mean_error", record.mean_error);
  visit("mean_load", record.mean_load);
  visit("saturated", record.saturated);
  visit("flushed", record.flushed);
  visit("headroom_bits", record.headroom_bits);
  visit("measured", record.measured);
  visit("last_vote", record.last_vote);
}

void members_of_decision(auto& decision, auto&& visit) {
  visit("from", decision.from);
  visit("to", decision.to);
  visit("error", decision.error);
  visit("bound", decision.bound);
}

// An enumeration's value, of which `last` is the largest.
template <class Value>
Value value_of(const json& number, Value last) {
  const auto value = number.get<int64_t>();
  TORCH_CHECK_VALUE(value >= 0 && value <= static_cast<int64_t>(last),
                    "precision: expected a reason and an operand in [0, ", static_cast<int64_t>(last), "], got ",
                    value);
  return static_cast<Value>(value);
}

json record_json(const recipe::CodesRecord& record) {
  json members;
  members_of_record(record, [&](const char* name, const auto& value) { members[name] = value; });
  return members;
}

recipe::CodesRecord record_of(const json& members) {
  recipe::CodesRecord record;
  members_of_record(record, [&](const char* name, auto& value) { members.at(name).get_to(value); });
  return record;
}

json product_json(const ProductPrecision& product) {
  json state;
  members(product.state, [&](const char* name, const auto& value) { state[name] = value; });
  state["own"] = record_json(product.state.own);
  state["below"] = record_json(product.state.below);
  state["multiply_adds"] = product.multiply_adds;
  if (!product.last) return state;
  json last = {{"reason", static_cast<int>(product.last->reason)}, {"role", static_cast<int>(product.last->role)}};
  members_of_decision(*product.last, [&](const char* name, const auto& value) { last[name] = value; });
  state["last"] = std::move(last);
  return state;
}

ProductPrecision product_of(const json& state) {
  ProductPrecision product;
  members(product.state, [&](const char* name, auto& value) { state.at(name).get_to(value); });
  product.state.own = record_of(state.at("own"));
  product.state.below = record_of(state.at("below"));
  state.at("multiply_adds").get_to(product.multiply_adds);
  if (!state.contains("last")) return product;
  const json& last = state.at("last");
  recipe::Decision& decision = product.last.emplace();
  members_of_decision(decision, [&](const char* name, auto& value) { last.at(name).get_to(value); });
  decision.reason = value_of(last.at("reason"), Reason::kQuiet);
  decision.role = value_of(last.at("role"), Role::kGradOutput);
  return product;
}

}  // namespace

json state_of(const PrecisionController& precision) {
  json layers = json::array();
  for (const LayerPrecision& layer : precision.layers()) {
    json products = json::array();
    for (const ProductPrecision& product : layer.products) products.push_back(product_json(product));
    layers.push_back({{"layer", layer.layer}, {"products", std::move(products)}});
  }
  return {
      {"formats", formats_of(precision)}, {"layers", std::move(layers)}, {"multiply_adds", precision.multiply_adds()}};
}

void restore(PrecisionController& precision, int64_t next_step, const json& state) {
  const auto formats = formats_of(precision), saved_formats = state.at("formats").get<std::vector<std::string>>();
  TORCH_CHECK_VALUE(saved_formats == formats, "recipe auto: expected the state of a ladder ", c10::Join(">", formats),
                    ", got one of ", c10::Join(">", saved_formats));
  std::vector<LayerPrecision> layers;
  for (const json& saved : state.at("layers")) {
    LayerPrecision& layer = layers.emplace_back();
    saved.at("layer").get_to(layer.layer);
    for (size_t i = 0; i < layer.products.size(); ++i) layer.products[i] = product_of(saved.at("products").at(i));
  }
  precision.restore(next_step, layers, state.at("multiply_adds").get<std::vector<double>>());
}

json to_json(const PrecisionChange& change) {
  return {{"layer", change.layer},
          {"product", name_of(change.gemm)},
          {"from", change.from},
          {"to", change.to},
          {"reason", recipe::name(change.decision.reason)},
          {"operand", role_name(change.decision.role)},
          {"error", change.decision.error},
          {"bound", change.decision.bound}};
}

json products_json(const std::vector<std::string>& formats, const std::vector<LayerPrecision>& layers) {
  json products = json::object();
  const int64_t last_rung = static_cast<int64_t>(formats.size()) - 1;
  for (const LayerPrecision& layer : layers) {
    for (const GemmKind gemm : recipe::kGemmKinds) {
      const ProductPrecision& product = layer.products[static_cast<size_t>(gemm)];
      if (product.multiply_adds == 0) continue;
      const recipe::CodesRecord& record = recipe::shown(product.state, last_rung);
      products[layer.layer + "/" + std::string(name_of(gemm))] = {
          {"format", formats.at(static_cast<size_t>(product.state.rung))},
          {"multiply_adds", product.multiply_adds},
          {"mean_error", record.mean_error},
          {"load", record.mean_load},
          {"saturated", record.saturated},
          {"flushed", record.flushed},
          {"headroom_bits", record.headroom_bits}};
    }
  }
  return products;
}

json shares_json(const std::vector<std::string>& formats, const std::vector<double>& multiply_adds) {
  const double all = std::accumulate(multiply_adds.begin(), multiply_adds.end(), 0.0);
  json shares = json::array();
  for (const double part : multiply_adds) shares.push_back(all > 0 ? part / all : 0);
  return {{"formats", formats}, {"share", std::move(shares)}};
}

std::vector<std::string> formats_of(const PrecisionController& precision) {
  std::vector<std::string> formats;
  for (const recipe::Rung& rung : precision.recipe().ladder) formats.push_back(rung.name);
  return formats;
}

}  // namespace plimsoll::ops
