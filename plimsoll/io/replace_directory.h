// Puts one directory in the place of another, so that after a kill at any moment one of the two is there, whole.
#pragma once

#include <filesystem>

namespace plimsoll::io {

// `from` gets the name `to`, and what stood there is removed. The two change places in one step. On file systems that
// cannot do that what stood at `to` is called replaced_name(to) for a moment, and a kill in that moment leaves it
// there. Durable. Throws Error and leaves `to` as it was.
void replace_directory(const std::filesystem::path& from, const std::filesystem::path& to);

std::filesystem::path replaced_name(const std::filesystem::path& to);

// Gives what a kill has left at replaced_name(to) its name again, if nothing else has that now.
void restore_replaced(const std::filesystem::path& to);

}  // namespace plimsoll::io
