// Errors of the standard library's file system functions, as ours.
#pragma once

#include <filesystem>

#include "plimsoll/io/error.h"

namespace plimsoll::io {

template <class Body>
auto with_our_errors(const Body& body) {
  try {
    return body();
  } catch (const std::filesystem::filesystem_error& error) {
    fail("{}: {}", error.path1().native(), error.code().message());
  }
}

}  // namespace plimsoll::io
