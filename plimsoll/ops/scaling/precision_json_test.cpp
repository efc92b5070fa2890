// State of a controller in a checkpoint, and its lines in a log.
#include "plimsoll/ops/scaling/precision_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::ops {
namespace {

using nlohmann::json;
using recipe::Reason;
using recipe::Role;

LayerPrecision promoted_layer() {
  LayerPrecision layer{.layer = "blocks.0.mlp.fc1"};
  layer.products[0] = {
      .state = {.rung = 1,
                .own = {.votes = 3, .mean_error = 0.7, .measured = 4},
                .below = {.votes = uint64_t{1} << 63,
                          .mean_error = 0.1,  // no binary fraction
                          .mean_load = 1.0 / 3,
                          .saturated = 1e-300,
                          .flushed = 0.25,
                          .headroom_bits = -0.5,
                          .measured = 12,
                          .last_vote = 5},
                .last_change = 5,
                .last_demotion = -1},
      .last =
          recipe::Decision{
              .from = 0, .to = 1, .reason = Reason::kFlushed, .role = Role::kWeight, .error = 0.3, .bound = 0.25},
      .multiply_adds = 1e15};
  return layer;
}

TEST(PrecisionJson, AStateThatIsReadBackIsTheSame) {
  PrecisionController controller(recipe::automatic_from_text("auto"));
  controller.restore(6, {promoted_layer()}, {2.5e15, 1e15});
  const json written = state_of(controller);
  PrecisionController other(recipe::automatic_from_text("auto"));
  restore(other, 6, json::parse(written.dump()));
  EXPECT_EQ(state_of(other), written);
  const ProductPrecision product = other.layers().at(0).products[0];
  EXPECT_EQ(product.state, promoted_layer().products[0].state);
  EXPECT_EQ(product.last->reason, Reason::kFlushed);
  EXPECT_EQ(product.last->role, Role::kWeight);
  EXPECT_EQ(other.multiply_adds(), (std::vector<double>{2.5e15, 1e15}));
  EXPECT_EQ(other.measures(), controller.measures());
}

TEST(PrecisionJson, AStateThatIsNoneLeavesTheControllerAsItIs) {
  PrecisionController controller(recipe::automatic_from_text("auto"));
  controller.restore(6, {promoted_layer()}, {2.5e15, 1e15});
  const json before = state_of(controller);
  const auto spoiled = [&](auto spoil) {
    json state = before;
    spoil(state);
    return state;
  };
  using Spoil = void (*)(json&);
  const std::vector<Spoil> unreadable = {
      [](json& state) { state = nullptr; },
      [](json& state) { state.erase("layers"); },
      [](json& state) { state["layers"][0].erase("layer"); },
      [](json& state) { state["layers"][0]["products"].erase(2); },
      [](json& state) { state["layers"][0]["products"][0]["own"]["votes"] = "many"; },
      [](json& state) { state["layers"][0]["products"][0].erase("below"); },
      [](json& state) { state["layers"][0]["products"][0]["last"].erase("role"); },
      [](json& state) { state["multiply_adds"] = 3; },
  };
  for (const Spoil spoil : unreadable) EXPECT_THROW(restore(controller, 6, spoiled(spoil)), json::exception);
  const std::vector<Spoil> others = {
      [](json& state) { state["layers"][0]["products"][0]["rung"] = 2; },
      [](json& state) { state["layers"][0]["products"][0]["last"]["reason"] = 9; },
      [](json& state) { state["layers"][0]["products"][0]["last"]["role"] = -1; },
      [](json& state) { state["layers"].push_back(state["layers"][0]); },
      [](json& state) { state["multiply_adds"].push_back(1.0); },
  };
  for (const Spoil spoil : others) EXPECT_THROW(restore(controller, 6, spoiled(spoil)), c10::ValueError);
  EXPECT_EQ(state_of(controller), before);
}

TEST(PrecisionJson, AChangeAndTheSharesAreNamed) {
  const PrecisionChange change{.layer = "fc",
                               .gemm = recipe::GemmKind::kGradInput,
                               .step = 4,
                               .from = "e4m3",
                               .to = "bf16",
                               .decision = *promoted_layer().products[0].last};
  EXPECT_EQ(to_json(change), json::parse(R"({"layer": "fc", "product": "grad_input", "from": "e4m3", "to": "bf16",
    "reason": "flushed", "operand": "weight", "error": 0.3, "bound": 0.25})"));
  EXPECT_EQ(shares_json({"e4m3", "bf16"}, {3, 1}),
            json::parse(R"({"formats": ["e4m3", "bf16"], "share": [0.75, 0.25]})"));
  EXPECT_EQ(shares_json({"e4m3", "bf16"}, {0, 0})["share"], json::parse("[0, 0]"));
  const json products = products_json({"e4m3", "bf16"}, {promoted_layer()});
  ASSERT_EQ(products.size(), 1U);  // the others computed nothing
  EXPECT_EQ(products["blocks.0.mlp.fc1/output"]["format"], "bf16");
  EXPECT_EQ(products["blocks.0.mlp.fc1/output"]["load"], 1.0 / 3);
}

}  // namespace
}  // namespace plimsoll::ops
