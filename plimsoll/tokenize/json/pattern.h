// A literal text or a regular expression, and all its matches in a text. The expression comes from a file: what it may
// cost is limited.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

struct Range {
  size_t begin, end;  // bytes
};

// The processor's time that all patterns together may take for one text.
class PatternTime {
 public:
  explicit PatternTime(size_t bytes);
  // Looks at the clock now and then. Throws Error, which `name` opens, when the time is over.
  void check(const std::string& name) {
    if (++checks_ % 16 == 0) look(name);
  }

 private:
  void look(const std::string& name) const;

  double limit_;
  std::chrono::steady_clock::time_point begin_;
  double processor_begin_;
  size_t checks_ = 0;
};

class Pattern {
 public:
  // `name` opens the errors of this call and of `find`.
  static Pattern literal(std::string text, const std::string& name);
  static Pattern regular(const std::string& expression, const std::string& name);

  // Appends the matches, left to right, none overlapping another. An empty match right behind another one is left out.
  // The text has to be UTF-8. Throws Error when the expression takes too many steps or too long.
  void find(std::string_view text, std::vector<Range>& matches, PatternTime& time) const;

  struct Expression;

 private:
  Pattern() = default;
  std::string literal_;  // empty: an expression
  std::shared_ptr<const Expression> expression_;
};

}  // namespace plimsoll::tokenize
