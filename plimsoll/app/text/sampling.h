// Draws of a text where a user says some of their options, and the model the others.
#pragma once

#include <optional>

#include "plimsoll/models/generation_defaults.h"

namespace plimsoll::app {

struct SamplingChoice {
  std::optional<double> temperature = {};
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  std::optional<double> min_p = {};
};

// The model's own where no option says more. An option other than min_p asks a model that draws nothing for draws.
inline nn::SamplingOptions chosen_sampling(const models::GenerationDefaults& defaults, const SamplingChoice& choice) {
  nn::SamplingOptions sampling = defaults.sampling;
  if (sampling.temperature == 0 && (choice.temperature || choice.top_k || choice.top_p)) sampling = nn::kUsualSampling;
  sampling.temperature = choice.temperature.value_or(sampling.temperature);
  sampling.top_k = choice.top_k.value_or(sampling.top_k);
  sampling.top_p = choice.top_p.value_or(sampling.top_p);
  sampling.min_p = choice.min_p.value_or(sampling.min_p);
  return sampling;
}

}  // namespace plimsoll::app
