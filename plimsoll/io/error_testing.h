// For tests of what calls throw.
#pragma once

#include <functional>
#include <string>

#include "plimsoll/io/error.h"

namespace plimsoll::io {

// The message of the Error that `body` throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace plimsoll::io
