#include "plimsoll/io/error.h"

namespace plimsoll::io {

std::string compose_arguments(fmt::string_view text, fmt::format_args args) { return fmt::vformat(text, args); }

}  // namespace plimsoll::io
