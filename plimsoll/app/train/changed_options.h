// Options that a run goes on with and did not begin with.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace plimsoll::app {

// One line for each option of two configurations of one command ({option: value}) whose values differ and change what is trained
// from here on. Not among them: where files are, how often the run is saved and watched, on how many processes and threads it runs.
std::vector<std::string> changed_options(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace plimsoll::app
