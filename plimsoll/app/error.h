// Errors of the commands, one line each. The command turns UsageError into exit code 2, NotFinite into 3, Interrupted into
// 130 and everything else into 1.
#pragma once

#include <stdexcept>

#include "plimsoll/io/error.h"

namespace plimsoll::app {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user asked for something that cannot be.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The work is done, and its result is Inf or NaN.
class NotFinite : public Error {
 public:
  using Error::Error;
};

// Ctrl-C has stopped the work, and nothing is left of it.
class Interrupted : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, const Args&... args) {
  throw Error(io::compose(text, args...));
}

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, const Args&... args) {
  throw UsageError(io::compose(text, args...));
}

template <class... Args>
[[noreturn]] void report_not_finite(fmt::format_string<Args...> text, const Args&... args) {
  throw NotFinite(io::compose(text, args...));
}

}  // namespace plimsoll::app
