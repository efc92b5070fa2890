// The way in which a model's texts are written where nothing else is asked for.
#pragma once

#include <filesystem>

#include "plimsoll/models/logits_rules.h"
#include "plimsoll/nn/sampler.h"

namespace plimsoll::models {

struct GenerationDefaults {
  nn::SamplingOptions sampling = {};  // without do_sample: temperature 0, the likeliest token is taken
  LogitsRules rules = {};
  nn::SamplingOptions draws = nn::kUsualSampling;  // the file's for one who asks for draws, do_sample or not
  int64_t max_new_tokens = 20;
};

// Members do_sample, temperature, top_k, top_p, min_p, repetition_penalty, no_repeat_ngram_size and max_new_tokens of the
// directory's generation_config.json, with transformers' defaults: without the file, or without do_sample, the likeliest
// token is taken. No other member is read. Throws io::Error, which names the file and the member.
GenerationDefaults read_generation_defaults(const std::filesystem::path& directory);

}  // namespace plimsoll::models
