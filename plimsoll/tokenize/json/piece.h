// The pieces that a text is cut into before its words become ids.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/tokenize/json/pattern.h"

namespace plimsoll::tokenize {

struct Piece {
  std::string_view text;
  bool starts_text = false;  // whether it begins where the text that was given does
};

// Texts that steps made of one text, which stay where they are while pieces point to them, and what the steps may take.
class MadeTexts {
 public:
  // A text of `bytes` bytes may be made into so many; made-up files could double them with every step.
  explicit MadeTexts(size_t bytes) : time(bytes), left_((size_t{1} << 20) + 64 * bytes) {}
  // Throws Error for more than that.
  std::string_view keep(std::string text);

  PatternTime time;

 private:
  std::deque<std::string> texts_;
  size_t left_;
};

// The fate of a match and of what stands between two.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Split {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool inverted = false;  // what is between the matches is taken for matches, and these for what is between
};

// A part of a text: a match, or what is before, between and after matches. Parts follow one another without a gap.
struct Part {
  Range range;
  bool is_match;
};

// The parts that these matches, sorted, cut a text of `bytes` bytes into.
std::vector<Part> parts_of(const std::vector<Range>& matches, size_t bytes);

// Appends the pieces that `behavior` makes of the parts; empty ones are left out.
void append_pieces(const Piece& whole, const std::vector<Part>& parts, SplitBehavior behavior,
                   std::vector<Piece>& pieces);

}  // namespace plimsoll::tokenize
