#include "plimsoll/tokenize/json/piece.h"

#include <algorithm>

#include "plimsoll/io/error.h"

namespace plimsoll::tokenize {
namespace {

// Parts joined with the one before (or, from the back, behind) them.
template <class Iterator, class Joins>
std::vector<Range> join(Iterator begin, Iterator end, const Joins& joins) {
  std::vector<Range> joined;
  bool previous_match = false;
  for (Iterator part = begin; part != end; ++part) {
    if (!joined.empty() && joins(part->is_match, previous_match)) {
      joined.back() = {std::min(joined.back().begin, part->range.begin), std::max(joined.back().end, part->range.end)};
    } else {
      joined.push_back(part->range);
    }
    previous_match = part->is_match;
  }
  return joined;
}

std::vector<Range> ranges_of(const std::vector<Part>& parts, SplitBehavior behavior) {
  const auto lone_match = [](bool is_match, bool previous) { return is_match && !previous; };
  std::vector<Range> ranges;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) ranges.push_back(part.range);
      return ranges;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.is_match) ranges.push_back(part.range);
      }
      return ranges;
    case SplitBehavior::kContiguous:
      return join(parts.begin(), parts.end(), [](bool is_match, bool previous) { return is_match == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return join(parts.begin(), parts.end(), lone_match);
    case SplitBehavior::kMergedWithNext:
      ranges = join(parts.rbegin(), parts.rend(), lone_match);
      std::reverse(ranges.begin(), ranges.end());
      return ranges;
  }
  return ranges;
}

}  // namespace

std::string_view MadeTexts::keep(std::string text) {
  if (text.size() > left_) io::fail("tokenizer: expected steps that make at most 64 bytes of a byte, got more");
  left_ -= text.size();
  return texts_.emplace_back(std::move(text));
}

std::vector<Part> parts_of(const std::vector<Range>& matches, size_t bytes) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t end = 0;
  for (const Range& match : matches) {
    if (match.begin > end) parts.push_back({{end, match.begin}, false});
    parts.push_back({match, true});
    end = match.end;
  }
  if (end < bytes) parts.push_back({{end, bytes}, false});
  return parts;
}

void append_pieces(const Piece& whole, const std::vector<Part>& parts, SplitBehavior behavior,
                   std::vector<Piece>& pieces) {
  for (const Range& range : ranges_of(parts, behavior)) {
    if (range.begin < range.end) {
      pieces.push_back(
          {whole.text.substr(range.begin, range.end - range.begin), whole.starts_text && range.begin == 0});
    }
  }
}

}  // namespace plimsoll::tokenize
