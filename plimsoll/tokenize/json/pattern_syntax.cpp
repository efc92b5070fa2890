#include "plimsoll/tokenize/json/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

// Members of a class, as Oniguruma 6.9 has them under Unicode. PCRE2's \s has U+180E, too; its \w neither marks nor
// letter-like numbers.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kWordCharacters =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9})"
    R"(\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
constexpr std::string_view kHexDigits = "0-9A-Fa-f";
constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};
constexpr std::array<std::string_view, 6> kGroups = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

bool is_letter_or_digit(char byte) { return std::isalnum(static_cast<unsigned char>(byte)) != 0; }

class Rewriter {
 public:
  Rewriter(std::string_view pattern, const std::string& name) : pattern_(pattern), name_(name) {}

  std::string rewrite() {
    if (pattern_.starts_with("(?i)"))
      copy(4);  // elsewhere it ends with the group in one, with the alternative in the other
    while (place_ < pattern_.size()) {
      if (inside_class_) {
        rewrite_in_class();
      } else {
        rewrite_outside();
      }
    }
    if (inside_class_) refuse("a class without its ']'");
    return result_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    io::fail("{}: expected an expression that means the same to Oniguruma and to PCRE2, got {} at byte {}", name_, what,
             place_);
  }

  bool at(std::string_view text) const { return pattern_.substr(place_).starts_with(text); }
  char peek(size_t ahead) const { return place_ + ahead < pattern_.size() ? pattern_[place_ + ahead] : '\0'; }
  void copy(size_t bytes) {
    result_ += pattern_.substr(place_, bytes);
    place_ += bytes;
  }
  void replace(size_t bytes, std::string_view text) {
    result_ += text;
    place_ += bytes;
  }
  // A class of its own, or members of the one that is open.
  void replace_by_members(size_t bytes, std::string_view members, bool negated) {
    if (inside_class_ && negated) refuse("a negated class inside of a class");
    if (!inside_class_) result_ += negated ? "[^" : "[";
    replace(bytes, members);
    if (!inside_class_) result_ += ']';
  }

  void rewrite_outside() {
    switch (peek(0)) {
      case '\\':
        return rewrite_escape();
      case '[':
        return open_class();
      case '(':
        return open_group();
      case '{':
        return rewrite_interval();
      default:
        return copy(1);
    }
  }

  void rewrite_in_class() {
    if (peek(0) == '[') refuse("a class inside of a class");
    if (at("&&")) refuse("an intersection of classes");
    if (peek(0) == '\\') return rewrite_escape();
    if (peek(0) == ']') inside_class_ = false;
    copy(1);
  }

  void open_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse("a class that begins with ']'");
    inside_class_ = true;
  }

  void open_group() {
    if (peek(1) == '*') refuse("'(*'");
    if (peek(1) != '?') return copy(1);
    if (at("(?i:") || at("(?-i:")) return copy(pattern_.find(':', place_) + 1 - place_);
    for (const std::string_view group : kGroups) {
      if (at(group)) return copy(group.size());
    }
    refuse("a group that is none of (, (?:, (?i:, (?-i:, (?=, (?!, (?<=, (?<!, (?>");
  }

  // {n}, {n,} or {n,m}, as it is.
  void rewrite_interval() {
    const size_t begin = place_;
    const auto copy_digits = [&] {
      const size_t first = place_;
      while (std::isdigit(static_cast<unsigned char>(peek(0))) != 0) copy(1);
      return place_ > first;
    };
    copy(1);
    bool counted = copy_digits(), exact = true;
    if (counted && peek(0) == ',') {
      copy(1);
      copy_digits();
      exact = false;
    }
    if (!counted || peek(0) != '}') {
      place_ = begin;
      refuse("'{' that begins no {n}, {n,} or {n,m}");
    }
    copy(1);
    if (peek(0) == '+' || (exact && peek(0) == '?')) refuse("a sign behind an interval");
  }

  void rewrite_escape() {
    const char letter = peek(1);
    switch (letter) {
      case 's':
        return replace_by_members(2, kSpaces, false);
      case 'S':
        if (inside_class_) return replace(2, R"(\P{White_Space})");
        return replace_by_members(2, kSpaces, true);
      case 'w':
      case 'W':
        return replace_by_members(2, kWordCharacters, letter == 'W');
      case 'h':
      case 'H':
        return replace_by_members(2, kHexDigits, letter == 'H');
      case 'b':
      case 'B':
        return rewrite_boundary(letter == 'B');
      case 'v':
        return replace(2, R"(\x{B})");
      case 'p':
      case 'P':
        return rewrite_property();
      case 'x':
      case 'u':
        return rewrite_number();
      case 'd':
      case 'D':
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return copy(2);
      case 'A':
      case 'z':
        if (inside_class_) break;
        return copy(2);
      default:
        if (place_ + 1 < pattern_.size() && !is_letter_or_digit(letter)) {
          copy(1);
          return copy(character_at(pattern_, place_).bytes);
        }
    }
    refuse("an escape that is not supported");
  }

  void rewrite_boundary(bool negated) {
    if (inside_class_) refuse("an escape that is not supported");
    const std::string word = "[" + std::string(kWordCharacters) + "]";
    const std::string before = "(?<=" + word + ")", not_before = "(?<!" + word + ")";
    const std::string after = "(?=" + word + ")", not_after = "(?!" + word + ")";
    replace(2, negated ? "(?:" + before + after + "|" + not_before + not_after + ")"
                       : "(?:" + before + not_after + "|" + not_before + after + ")");
  }

  // \p{Lu}, \P{Lu}, \p{^Lu}: a general category, or else a script. PCRE2 would take a script's name for its extensions.
  void rewrite_property() {
    const size_t end = pattern_.find('}', place_);
    if (peek(2) != '{' || end == pattern_.npos) refuse("a property without braces");
    std::string_view property = pattern_.substr(place_ + 3, end - place_ - 3);
    bool negated = peek(1) == 'P';
    if (property.starts_with('^')) {
      negated = !negated;
      property.remove_prefix(1);
    }
    const bool is_name =
        std::all_of(property.begin(), property.end(), [](char c) { return is_letter_or_digit(c) || c == '_'; });
    if (property.empty() || !is_name) refuse("a property that is no name");
    result_ += negated ? "\\P{" : "\\p{";
    const bool is_category = std::find(kCategories.begin(), kCategories.end(), property) != kCategories.end();
    if (!is_category) result_ += "sc:";
    result_ += property;
    result_ += '}';
    place_ = end + 1;
  }

  // \x{H...} and \uHHHH, and \xHH below 80, above which Oniguruma means a byte.
  void rewrite_number() {
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    const size_t begin = place_ + (braces ? 3 : 2), most = braces ? 6 : peek(1) == 'u' ? 4 : 2;
    size_t end = begin;
    while (end < pattern_.size() && end - begin < most && std::isxdigit(static_cast<unsigned char>(pattern_[end])) != 0)
      ++end;
    const std::string digits(pattern_.substr(begin, end - begin));
    const bool whole =
        braces ? !digits.empty() && end < pattern_.size() && pattern_[end] == '}' : digits.size() == most;
    if (!whole || (peek(1) == 'x' && !braces && digits >= "8")) refuse("a character's number that is not supported");
    result_ += "\\x{" + digits + "}";
    place_ = end + (braces ? 1 : 0);
  }

  std::string_view pattern_;
  const std::string& name_;
  std::string result_;
  size_t place_ = 0;
  bool inside_class_ = false;
};

}  // namespace

std::string to_pcre2_syntax(std::string_view pattern, const std::string& name) {
  return Rewriter(pattern, name).rewrite();
}

}  // namespace plimsoll::tokenize
