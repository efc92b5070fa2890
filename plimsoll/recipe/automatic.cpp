#include "plimsoll/recipe/automatic.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numbers>
#include <stdexcept>
#include <utility>

#include "plimsoll/recipe/names.h"

namespace plimsoll::recipe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kName = "auto", kDefaultLadder = "e4m3>bf16";

[[noreturn]] void fail_auto(std::string_view what, std::string_view expected, const std::string& got) {
  throw std::invalid_argument("recipe auto: expected " + std::string(what) + " " + std::string(expected) + ", got " +
                              got);
}

// Formats that a rung may name beside the recipes: NVFP4, and delayed scaling with one format for both passes.
Recipe recipe_of_rung(std::string_view name) {
  if (name == "e2m1") return Nvfp4Scaling{};
  if (name == "e4m3") return DelayedScaling{.fp8_format = Fp8Format::kE4m3};
  for (const std::string_view known : names()) {
    if (known == name) return by_name(name);
  }
  std::vector<std::string_view> known = {"e2m1", "e4m3"};
  std::ranges::copy(names(), std::back_inserter(known));
  throw std::invalid_argument(unknown_name("recipe auto: rung of the ladder", name, known));
}

enum class Width : uint8_t { kFourBits, kEightBits, kNoCodes };
Width width_of(const Recipe& recipe) {
  if (recipe.high_precision()) return Width::kNoCodes;
  return recipe.has_four_bits() ? Width::kFourBits : Width::kEightBits;
}

std::vector<Rung> parse_ladder(std::string_view text) {
  std::string whole(1, '\'');
  whole.append(text).append("'");
  std::vector<Rung> ladder;
  for (bool more = true; more;) {
    const size_t end = text.find('>');
    more = end != std::string_view::npos;
    ladder.push_back({std::string(text.substr(0, end)), recipe_of_rung(text.substr(0, end))});
    if (more) text.remove_prefix(end + 1);
  }
  bool widens = ladder.size() > 1 && width_of(ladder.back().recipe) == Width::kNoCodes;
  for (size_t i = 1; i < ladder.size(); ++i) {
    widens = widens && width_of(ladder[i - 1].recipe) < width_of(ladder[i].recipe);
  }
  if (!widens) {
    fail_auto("a ladder",
              "of one format of four bits or one of eight, or both, and one without codes, such as e4m3>bf16", whole);
  }
  return ladder;
}

std::string written_ladder(const std::vector<Rung>& ladder) {
  std::string text;
  for (const Rung& rung : ladder) text += (text.empty() ? "" : ">") + rung.name;
  return text;
}

void read(const Json& value, const std::string& name, int64_t& target) {
  if (!value.is_number_integer()) fail_auto(name, "as an integer", value.dump());
  target = value.get<int64_t>();
}

void read(const Json& value, const std::string& name, double& target) {
  if (!value.is_number()) fail_auto(name, "as a number", value.dump());
  target = value.get<double>();
}

void read(const Json& value, const std::string& name, std::array<double, 3>& target) {
  if (!value.is_array() || value.size() != target.size()) fail_auto(name, "[input, weight, grad_output]", value.dump());
  for (size_t i = 0; i < target.size(); ++i) read(value[i], name, target[i]);
}

// Calls visit(name, argument) for every argument that JSON holds beside the ladder.
void limit_arguments(auto& limits, auto&& visit) {
  visit("every", limits.every);
  visit("votes", limits.votes);
  visit("ballots", limits.ballots);
  visit("quiet", limits.quiet);
  visit("window", limits.window);
  visit("last_share", limits.last_share);
  visit("demote_share", limits.demote_share);
  visit("mean_decay", limits.mean_decay);
  visit("flushed", limits.flushed);
  visit("bound", limits.bound);
}

void check(const AutomaticLimits& limits) {
  constexpr int64_t kMostBallots = 64;  // bits of ProductState::votes
  const auto expect = [](bool condition, std::string_view name, std::string_view expected, const std::string& got) {
    if (!condition) fail_auto(name, expected, got);
  };
  expect(limits.every >= 1, "every", ">= 1", std::to_string(limits.every));
  expect(limits.ballots >= 1 && limits.ballots <= kMostBallots, "ballots", "in [1, 64]",
         std::to_string(limits.ballots));
  expect(limits.votes >= 1 && limits.votes <= limits.ballots, "votes",
         "in [1, " + std::to_string(limits.ballots) + "], the ballots", std::to_string(limits.votes));
  expect(limits.quiet >= 1, "quiet", ">= 1", std::to_string(limits.quiet));
  expect(limits.window >= 0, "window", ">= 0", std::to_string(limits.window));
  const auto share = [&](double value, std::string_view name) {
    expect(value >= 0 && value <= 1, name, "in [0, 1]", std::to_string(value));
  };
  share(limits.last_share, "last_share");
  share(limits.demote_share, "demote_share");
  expect(limits.mean_decay >= 0 && limits.mean_decay < 1, "mean_decay", "in [0, 1)", std::to_string(limits.mean_decay));
  expect(limits.flushed > 0 && limits.flushed <= 1, "flushed", "in (0, 1]", std::to_string(limits.flushed));
  for (const double bound : limits.bound) {
    expect(std::isfinite(bound) && bound > 0, "bound", "> 0 for each of input, weight and grad_output",
           std::to_string(bound));
  }
}

Automatic auto_from_object(const Json& json) {
  const auto ladder = json.find("ladder");
  if (ladder != json.end() && !ladder->is_string()) fail_auto("ladder", "as a string", ladder->dump());
  Automatic recipe{.ladder =
                       parse_ladder(ladder == json.end() ? std::string(kDefaultLadder) : ladder->get<std::string>())};
  std::vector<std::string_view> known{"name", "ladder"};
  limit_arguments(recipe.limits, [&](std::string_view name, auto& argument) {
    known.push_back(name);
    if (const auto found = json.find(name); found != json.end()) read(*found, std::string(name), argument);
  });
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw std::invalid_argument(unknown_name("argument of recipe auto", key, known));
    }
  }
  check(recipe.limits);
  return recipe;
}

}  // namespace

int64_t& ProductRungs::of(GemmKind gemm) {
  return gemm == GemmKind::kOutput ? output : gemm == GemmKind::kGradInput ? grad_input : grad_weight;
}

Recipe Automatic::at(const ProductRungs& rungs) const {
  ProductScalings products;
  for (const Rung& rung : ladder) {
    Scaling& scaling = products.scalings.emplace_back(rung.recipe.scaling());
    std::visit(
        [&](auto& args) {
          if constexpr (requires { args.high_precision_format; }) {
            args.high_precision_format = wide().high_precision_format();
          }
        },
        scaling);
  }
  products.of_product = {static_cast<size_t>(rungs.output), static_cast<size_t>(rungs.grad_input),
                         static_cast<size_t>(rungs.grad_weight)};
  const bool is_one = rungs.output == rungs.grad_input && rungs.output == rungs.grad_weight;
  return is_one ? Recipe(products.scalings.at(products.of_product.front())) : Recipe(std::move(products));
}

OperandRecipe Automatic::stored_operand(int64_t rung, Role role, GemmKind gemm) const {
  return ladder.at(static_cast<size_t>(rung)).recipe.stored_operand(role, gemm);
}

int64_t Automatic::rung_of(const OperandRecipe& stored, Role role, GemmKind gemm) const {
  int64_t rung = 0;
  while (has_codes(rung) && !(stored_operand(rung, role, gemm) == stored)) ++rung;
  return rung;
}

Format Automatic::format_of(int64_t rung, Role role) const {
  return stored_operand(rung, role, role == Role::kGradOutput ? GemmKind::kGradInput : GemmKind::kOutput).format;
}

double Automatic::bound(int64_t rung, Role role) const {
  return limits.bound[static_cast<size_t>(role)] * rounding_error(format_of(rung, role));
}

double Automatic::flushed(int64_t rung, Role role) const {
  constexpr double kOfE2m1 = 3;
  return format_of(rung, role) == Format::kE2m1 ? kOfE2m1 * limits.flushed : limits.flushed;
}

double rounding_error(Format format) {
  return std::ldexp(std::sqrt(2 * std::numbers::ln2 / 9), -(format::info(format).mantissa_bits + 1));
}

bool is_automatic(std::string_view text) {
  if (text == kName || text.starts_with(std::string(kName) + ":")) return true;
  if (!text.starts_with('{')) return false;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("name") && json["name"] == kName;
}

Automatic automatic_from_text(std::string_view text) {
  if (text.starts_with('{')) {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !is_automatic(text)) fail_auto("JSON", "with the name auto", std::string(text));
    return auto_from_object(json);
  }
  if (!is_automatic(text)) fail_auto("auto or", "auto:LADDER", "'" + std::string(text) + "'");
  if (text == kName) return auto_from_object(Json::object());
  return auto_from_object({{"ladder", text.substr(kName.size() + 1)}});
}

std::string to_json(const Automatic& recipe) {
  Json json;
  json["name"] = kName;
  json["ladder"] = written_ladder(recipe.ladder);
  limit_arguments(recipe.limits, [&](std::string_view name, const auto& argument) { json[name] = argument; });
  return json.dump();
}

}  // namespace plimsoll::recipe
