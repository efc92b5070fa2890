// Errors of the standard library's file system functions, as ours.
#pragma once

#include <filesystem>
#include <string>

#include "plimsoll/io/error.h"

namespace plimsoll::io {

template <class Body>
auto with_our_errors(const Body& body) {
  try {
    return body();
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string &first = error.path1().native(), &second = error.path2().native();
    if (!second.empty()) fail("{} to {}: {}", first, second, error.code().message());
    fail("{}: {}", first, error.code().message());
  }
}

}  // namespace plimsoll::io
