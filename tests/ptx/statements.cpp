#include "tests/ptx/statements.h"

#include <algorithm>
#include <cctype>

namespace plimsoll::ptx {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

bool ends_with_line(std::string_view text) {
  constexpr std::string_view kDirectives[] = {".version", ".target",       ".address_size", ".loc",    ".file",
                                              ".maxntid", ".minnctapersm", ".reqntid",      ".maxnreg"};
  const auto word = text.substr(0, text.find_first_of(" \t"));
  return std::find(std::begin(kDirectives), std::end(kDirectives), word) != std::end(kDirectives);
}

bool begins_code(const std::string& text) {
  return text.find(".entry") != std::string::npos || text.find(".func") != std::string::npos;
}

// Blanks in the place of comments, so that lines keep their numbers.
std::string without_comments(std::string_view text) {
  std::string result(text);
  for (size_t i = 0; i + 1 < result.size(); ++i) {
    const bool is_line = result[i] == '/' && result[i + 1] == '/', is_block = result[i] == '/' && result[i + 1] == '*';
    if (!is_line && !is_block) continue;
    const size_t found = is_line ? result.find('\n', i) : result.find("*/", i);
    const size_t end = found == std::string::npos ? result.size() : is_line ? found : found + 2;
    for (; i < end; ++i) {
      if (result[i] != '\n') result[i] = ' ';
    }
  }
  return result;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> result;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : separator;
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (c != separator || (depth > 0 && i < text.size())) continue;
    const std::string_view piece = trimmed(text.substr(begin, i - begin));
    if (!piece.empty()) result.push_back(piece);
    begin = i + 1;
  }
  return result;
}

std::vector<Statement> cut_statements(std::string_view given) {
  const std::string text = without_comments(given);
  std::vector<Statement> result;
  Statement current;
  int line = 1, vectors = 0;
  const auto finish = [&](char end) {
    current.end = end;
    current.text = std::string(trimmed(current.text));
    if (!current.text.empty() || end == '{' || end == '}') result.push_back(current);
    current = {};
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : ' ', before = i > 0 ? text[i - 1] : ' ';
    if (c == '\n' && ends_with_line(current.text)) {
      finish(';');
    } else if (c == '{' && !current.text.empty() && !begins_code(current.text)) {
      ++vectors;  // a vector of registers, or an initial value
      current.text += c;
    } else if (c == '}' && vectors > 0) {
      --vectors;
      current.text += c;
    } else if (c == ';' || c == '{' || c == '}' || (c == ':' && next != ':' && before != ':' && vectors == 0)) {
      finish(c);
    } else if (!current.text.empty() || !is_space(c)) {
      if (current.text.empty()) current.line = line;
      current.text += c;
    }
    if (c == '\n') ++line;
  }
  return result;
}

}  // namespace plimsoll::ptx
