#include "plimsoll/models/generation_defaults.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/config_members.h"

namespace plimsoll::models {

GenerationDefaults read_generation_defaults(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  const nlohmann::json file = std::filesystem::exists(path) ? io::read_json(path) : nlohmann::json::object();
  if (!file.is_object()) io::fail("{}: expected a JSON object, got {}", path.native(), file.type_name());
  const ConfigMembers members(file, path.native());
  GenerationDefaults defaults{.sampling = {.temperature = 0}};
  defaults.draws = {.temperature = members.number("temperature", nn::kUsualSampling.temperature),
                    .top_k = members.integer("top_k", nn::kUsualSampling.top_k),
                    .top_p = members.number("top_p", nn::kUsualSampling.top_p),
                    .min_p = members.number("min_p", nn::kUsualSampling.min_p)};
  if (members.flag("do_sample", false)) defaults.sampling = defaults.draws;
  defaults.max_new_tokens = members.integer("max_new_tokens", defaults.max_new_tokens);
  defaults.rules.repetition_penalty = members.number("repetition_penalty", 1);
  defaults.rules.no_repeat_ngram_size = members.integer("no_repeat_ngram_size", 0);
  try {
    nn::check(defaults.sampling);
    check(defaults.rules, /*vocabulary=*/0);
  } catch (const c10::Error& error) {
    io::fail("{}: {}", path.native(), std::string(error.what_without_backtrace()));
  }
  return defaults;
}

}  // namespace plimsoll::models
