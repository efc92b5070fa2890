// The way in which a model's texts are written where nothing else is asked for.
#pragma once

#include <filesystem>

#include "plimsoll/models/logits_rules.h"
#include "plimsoll/nn/sampler.h"

namespace plimsoll::models {

struct GenerationDefaults {
  nn::SamplingOptions sampling = {};
  LogitsRules rules = {};
};

// Members do_sample, temperature, top_k, top_p, min_p, repetition_penalty and no_repeat_ngram_size of the directory's
// generation_config.json, with transformers' defaults: without the file, or without do_sample, the likeliest token is
// taken. Throws io::Error, which names the file and the member.
GenerationDefaults read_generation_defaults(const std::filesystem::path& directory);

}  // namespace plimsoll::models
