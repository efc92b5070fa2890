// Tables as RFC 4180 writes them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace plimsoll::app {

// Rows of fields: quoted ones may hold commas, line ends and doubled quotes. A mark of the byte order and empty lines
// are left out. Throws Error that names the file: cannot be read, or a quote that does not end.
std::vector<std::vector<std::string>> read_csv(const std::filesystem::path& file);

}  // namespace plimsoll::app
