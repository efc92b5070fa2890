// Names that users type, and what to say when there is no such name.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace plimsoll::recipe {

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other, letters compared without
// case.
int edit_distance(std::string_view a, std::string_view b);

// One line for an error: "KIND: expected NEAREST, ... or FARTHEST, got 'NAME'".
std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string_view> known);

}  // namespace plimsoll::recipe
