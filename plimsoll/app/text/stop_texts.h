// Texts that end a text which comes in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::app {

class StopTexts {
 public:
  // None of them is empty.
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds a piece and returns what can be shown: all before the first stop, and nothing that a later piece may complete to
  // one.
  std::string add(std::string_view piece);
  // The rest, which no stop followed.
  std::string finish();
  bool reached() const { return reached_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the beginning of a stop, perhaps
  bool reached_ = false;
};

}  // namespace plimsoll::app
