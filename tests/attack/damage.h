// Damage to valid files: to their bytes, and to JSON where it stays JSON. The same as damage.py's, for a hundred
// thousand files.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

namespace plimsoll::attack {

using Random = std::mt19937_64;

// One to eight places changed: bits, numbers, pieces cut out, doubled or moved, the end cut off.
std::string damage_bytes(Random& random, std::string bytes);

// Odd numbers, texts, lists and objects.
nlohmann::json hostile_value(Random& random, int depth = 0);

// One to four members replaced, removed or added.
nlohmann::json damage_json(Random& random, nlohmann::json document);

}  // namespace plimsoll::attack
