#include "plimsoll/models/lora/lora.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "plimsoll/io/error.h"
#include "plimsoll/models/lora/places.h"

namespace plimsoll::models {
namespace {

bool is_named(const std::string& module, const std::string& target) {
  return target == kAllLinear || module == target || module.ends_with("." + target);
}

// Throws unless each target names a module.
void check_targets(const std::vector<LoraPlace>& places, const std::vector<std::string>& targets) {
  std::set<std::string> known = {kAllLinear};
  for (const LoraPlace& place : places) {
    for (const LoraModule& module : place.modules) known.insert(module.part.name);
  }
  TORCH_CHECK_VALUE(!targets.empty(), "lora: expected targets, got none");
  for (const std::string& target : targets) {
    const bool found = std::any_of(places.begin(), places.end(), [&](const LoraPlace& place) {
      return std::any_of(place.modules.begin(), place.modules.end(),
                         [&](const LoraModule& module) { return is_named(module.name, target); });
    });
    TORCH_CHECK_VALUE(found, fmt::format("lora: expected targets among {}, got '{}'", fmt::join(known, ", "), target));
  }
}

// Places with a target, and of their modules the targets alone.
std::vector<LoraPlace> target_places(const DecoderConfig& config, const std::vector<std::string>& targets) {
  std::vector<LoraPlace> places = lora_places(config);
  check_targets(places, targets);
  for (LoraPlace& place : places) {
    std::erase_if(place.modules, [&](const LoraModule& module) {
      return std::none_of(targets.begin(), targets.end(),
                          [&](const std::string& target) { return is_named(module.name, target); });
    });
  }
  std::erase_if(places, [](const LoraPlace& place) { return place.modules.empty(); });
  return places;
}

}  // namespace

int64_t lora_parameters(const DecoderConfig& config, const LoraOptions& options) {
  int64_t count = 0;
  for (const LoraPlace& place : target_places(config, options.targets)) {
    for (const LoraModule& module : place.modules) {
      count += options.adapters.rank * (place.in_features + module.part.rows);
    }
  }
  return count;
}

void add_lora(LanguageModel& model, const LoraOptions& options) {
  DecoderImpl& decoder = lora_decoder(model);
  const std::vector<LoraPlace> places = target_places(decoder.config, options.targets);
  freeze_base(decoder);
  for (const LoraPlace& place : places) {
    layer_of(decoder, place).add_lora(place.prefix, make_lora(place, options.adapters));
  }
}

void merge_lora(LanguageModel& model, const Warn& warn) {
  const at::NoGradGuard no_grad;
  DecoderImpl& decoder = lora_decoder(model);
  const auto parameters = decoder.named_parameters();
  OverflowedWeights overflowed;
  for (const AdaptedPlace& adapted : needed_adapters(decoder)) {
    const std::string name = adapted.place.parameter();
    const at::Tensor weight = parameters[name];
    if (!weight.is_non_overlapping_and_dense()) io::fail("merge: expected weights, got FP8 codes in '{}'", name);
    for (size_t i = 0; i < adapted.lora->parts.size(); ++i) {
      const nn::LoraPart& part = adapted.lora->parts[i];
      const at::Tensor rows = weight.narrow(0, part.first_row, part.rows);
      const at::Tensor sum = rows.to(at::kFloat) + adapted.lora->delta(i);
      rows.copy_(sum);
      if (rows.scalar_type() != at::kFloat) overflowed.add(name, sum, rows);
    }
    layer_of(decoder, adapted.place).remove_lora(adapted.place.prefix);
  }
  if (overflowed.count() > 0 && warn) warn(overflowed.text());
}

}  // namespace plimsoll::models
