// Texts on standard output. What cannot be written is an app::Error.
#pragma once

#include <string_view>

namespace plimsoll::cli {

// Shown at once.
void write_text(std::string_view text);
void write_line(std::string_view text);

}  // namespace plimsoll::cli
