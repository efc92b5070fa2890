// The one exception of io/: a single line that names the file, what was expected and what came.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace plimsoll::io {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string compose_arguments(fmt::string_view text, fmt::format_args args);

// `text` with its arguments in place.
template <class... Args>
std::string compose(fmt::format_string<Args...> text, const Args&... args) {
  return compose_arguments(text, fmt::make_format_args(args...));
}

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, const Args&... args) {
  throw Error(compose_arguments(text, fmt::make_format_args(args...)));
}

}  // namespace plimsoll::io
