// Codes of a directory, looked at as those are that load it.
#pragma once

#include <filesystem>

namespace plimsoll::app {

// Throws the io::Error that models::load throws of codes without their scales, of scales without codes, and of codes and scales
// that are damaged. Nothing is expected where `path` is no Hugging Face directory with codes of a kind that is read.
void check_codes(const std::filesystem::path& path);

}  // namespace plimsoll::app
