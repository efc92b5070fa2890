// Patterns of tokenizer.json are written for Oniguruma (its Ruby syntax); PCRE2 reads most of them alike and some in
// another way. Here a pattern is rewritten so that PCRE2 matches the same; what has another meaning in the two, or is
// not known to have the same, is an error.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll::tokenize {

// `name` opens the error.
std::string to_pcre2_syntax(std::string_view pattern, const std::string& name);

}  // namespace plimsoll::tokenize
