// Recipes as JSON. One list of arguments per recipe serves both directions.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "plimsoll/recipe/names.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::recipe {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(std::string_view what, std::string_view expected, const std::string& got) {
  throw std::invalid_argument(std::string(what) + ": expected " + std::string(expected) + ", got " + got);
}

// Enumerations by name; the first column is what Transformer Engine's users write.
template <class T>
struct Spelling {
  std::string_view name;
  T value;
};
constexpr Spelling<Fp8Format> kFp8Formats[] = {
    {"E4M3", Fp8Format::kE4m3}, {"HYBRID", Fp8Format::kHybrid}, {"E5M2", Fp8Format::kE5m2}};
constexpr Spelling<AmaxRule> kAmaxRules[] = {{"max", AmaxRule::kMax}, {"most_recent", AmaxRule::kMostRecent}};
constexpr Spelling<ScaleRounding> kRoundings[] = {{"up", ScaleRounding::kUp}, {"down", ScaleRounding::kDown}};
constexpr Spelling<BackwardOverride> kBackwardOverrides[] = {{"none", BackwardOverride::kNone},
                                                             {"high_precision", BackwardOverride::kHighPrecision},
                                                             {"dequantized", BackwardOverride::kDequantized}};
constexpr Spelling<Format> kHighPrecision[] = {
    {"fp32", Format::kFp32}, {"bf16", Format::kBf16}, {"fp16", Format::kFp16}};

template <class T, size_t N>
void parse(const Json& json, std::string_view name, T& value, const Spelling<T> (&spellings)[N]) {
  std::string expected;
  for (const auto& spelling : spellings) {
    if (json == spelling.name) {
      value = spelling.value;
      return;
    }
    expected += (expected.empty() ? "\"" : " or \"") + std::string(spelling.name) + "\"";
  }
  fail(name, expected, json.dump());
}

template <class T, size_t N>
Json written(T value, const Spelling<T> (&spellings)[N]) {
  const auto found = std::find_if(spellings, spellings + N, [&](const auto& s) { return s.value == value; });
  return found->name;
}

void read(const Json& json, std::string_view name, bool& value) {
  if (!json.is_boolean()) fail(name, "true or false", json.dump());
  value = json.get<bool>();
}

template <std::signed_integral T>
void read(const Json& json, std::string_view name, T& value) {
  if (!json.is_number_integer()) fail(name, "an integer", json.dump());
  const bool fits =
      json.is_number_unsigned() ? std::in_range<T>(json.get<uint64_t>()) : std::in_range<T>(json.get<int64_t>());
  if (!fits) fail(name, "an integer of " + std::to_string(8 * sizeof(T)) + " bits", json.dump());
  value = json.get<T>();
}

void read(const Json& json, std::string_view name, Fp8Format& value) { parse(json, name, value, kFp8Formats); }
void read(const Json& json, std::string_view name, ScaleRounding& value) { parse(json, name, value, kRoundings); }
void read(const Json& json, std::string_view name, BackwardOverride& value) {
  parse(json, name, value, kBackwardOverrides);
}
void read(const Json& json, std::string_view name, Format& value) { parse(json, name, value, kHighPrecision); }
void read(const Json& json, std::string_view name, std::variant<AmaxRule, AmaxFunction>& value) {
  AmaxRule rule{};
  parse(json, name, rule, kAmaxRules);
  value = rule;
}
void read(const Json& json, std::string_view name, LinearOverride& value) {
  const bool three = json.is_array() && json.size() == 3 &&
                     std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_boolean(); });
  if (!three) fail(name, "[fprop, dgrad, wgrad], each true or false", json.dump());
  value = {json[0].get<bool>(), json[1].get<bool>(), json[2].get<bool>()};
}

template <class T>
Json write(const T& value) {
  return value;
}
Json write(Fp8Format value) { return written(value, kFp8Formats); }
Json write(ScaleRounding value) { return written(value, kRoundings); }
Json write(BackwardOverride value) { return written(value, kBackwardOverrides); }
Json write(Format value) { return written(value, kHighPrecision); }
Json write(const std::variant<AmaxRule, AmaxFunction>& value) {
  if (std::holds_alternative<AmaxFunction>(value)) fail("amax_compute_algo", "a name to write as JSON", "a callable");
  return written(std::get<AmaxRule>(value), kAmaxRules);
}
Json write(const LinearOverride& value) { return Json::array({value.output, value.grad_input, value.grad_weight}); }

// Calls visit(name, argument) for every argument that JSON holds.
void arguments(const HighPrecision&, auto&&) {}  // the name says it all
void arguments(HighPrecision&, auto&&) {}
void arguments(auto& args, auto&& visit) {
  if constexpr (requires { args.amax_history_len; }) {
    visit("margin", args.margin);
    visit("interval", args.interval);
    visit("amax_history_len", args.amax_history_len);
    visit("amax_compute_algo", args.amax_compute_algo);
    visit("reduce_amax", args.reduce_amax);
  }
  if constexpr (requires { args.fp8_format; }) visit("fp8_format", args.fp8_format);
  if constexpr (requires { args.power_of_two; }) visit("power_of_two", args.power_of_two);
  if constexpr (requires { args.rounding; }) visit("rounding", args.rounding);
  if constexpr (requires { args.disable_rht; }) {
    visit("disable_rht", args.disable_rht);
    visit("disable_stochastic_rounding", args.disable_stochastic_rounding);
    visit("disable_2d_quantization", args.disable_2d_quantization);
  }
  visit("override_linear_precision", args.override_linear_precision);
  visit("backward_override", args.backward_override);
  visit("high_precision_format", args.high_precision_format);
}

Recipe from_object(const Json& json) {
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) fail("recipe", "a \"name\"", json.dump());
  Scaling scaling = by_name(name->get<std::string>()).scaling();
  std::vector<std::string_view> known{"name"};
  std::visit(
      [&](auto& args) {
        arguments(args, [&](std::string_view argument, auto& value) {
          known.push_back(argument);
          if (const auto found = json.find(argument); found != json.end()) read(*found, argument, value);
        });
      },
      scaling);
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw std::invalid_argument(unknown_name("argument of recipe " + name->get<std::string>(), key, known));
    }
  }
  return Recipe(std::move(scaling));
}

}  // namespace

Recipe from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_string()) return by_name(json.get<std::string>());
  if (!json.is_object()) fail("recipe", "a JSON string or object", std::string(text));
  return from_object(json);
}

std::string to_json(const Recipe& recipe) {
  if (recipe.is_mixed()) fail("recipe", "one for all products to write as JSON", "one for each");
  Json json;
  json["name"] = recipe.name();
  std::visit(
      [&](const auto& args) {
        if constexpr (requires { args.scaling_factor_compute_algo; }) {
          if (args.scaling_factor_compute_algo) {
            fail("scaling_factor_compute_algo", "the default rule to write as JSON", "a callable");
          }
        }
        arguments(args, [&](std::string_view argument, const auto& value) { json[argument] = write(value); });
      },
      recipe.scaling());
  return json.dump();
}

}  // namespace plimsoll::recipe
