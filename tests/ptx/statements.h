// PTX text cut into statements.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::ptx {

struct Statement {
  int line = 0;
  char end = ';';  // ';', '{', '}' or ':' (a label)
  std::string text;
};

// Comments are left out. What has no end (.version, .loc) ends with its line.
std::vector<Statement> cut_statements(std::string_view text);

// Without white space at both ends.
std::string_view trimmed(std::string_view text);
// Pieces between separators that stand outside of brackets; none of an empty text.
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace plimsoll::ptx
